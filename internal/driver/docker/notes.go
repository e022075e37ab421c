// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
)

// notes records the last requested rootDisk, so that List returns the same note as
// Ensure. The container's label has the value from its creation.
type notes struct {
	mu       sync.Mutex
	rootDisk map[string]int64
}

func (n *notes) remember(id string, rootDisk int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rootDisk == nil {
		n.rootDisk = map[string]int64{}
	}
	n.rootDisk[id] = rootDisk
}

// of returns the note on a container.
func (n *notes) of(r record) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	disk, ok := n.rootDisk[r.id]
	if !ok {
		disk = r.rootDisk
	}
	if disk <= 0 {
		return ""
	}
	return "rootDisk " + sizeText(disk) + " is not enforced: most Docker storage drivers cannot limit it"
}

// prune removes the entries of all but the existing containers.
func (n *notes) prune(there map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	prune(n.rootDisk, there)
}

// prune deletes from m the ids that are not in there.
func prune[V any](m map[string]V, there map[string]bool) {
	for id := range m {
		if !there[id] {
			delete(m, id)
		}
	}
}

// sizeText writes 40000000000 as 40G and 42949672960 as 40Gi.
func sizeText(bytes int64) string {
	format := resource.DecimalSI
	if bytes%1000 != 0 && bytes%1024 == 0 || bytes%(1<<30) == 0 {
		format = resource.BinarySI
	}
	return resource.NewQuantity(bytes, format).String()
}

// roughly formats a measured size, which needs no exact unit.
func roughly(bytes int64) string { return fmt.Sprintf("%dM", bytes/1e6) }
