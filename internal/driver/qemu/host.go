// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"

	"cloudnative.tw/drover/internal/driver"
)

// reservations admit guests to the memory of the host.
type reservations struct {
	mu sync.Mutex
	// starting has, by server, what guests are being started with.
	starting map[string]int64
}

// take sets memory aside for a guest until its start is over, and refuses one
// that the host has no room for. look tells what is available, and what each
// machine that runs was promised and does not use yet: nobody has that, and still
// it is not free.
func (r *reservations) take(id string, needed int64, look func() (int64, map[string]int64, error)) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.admit(needed, 0, look); err != nil {
		return nil, err
	}
	if r.starting == nil {
		r.starting = map[string]int64{}
	}
	r.starting[id] = needed
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.starting, id)
	}, nil
}

// check tells whether a guest would be admitted once another has given back what it
// was started with.
func (r *reservations) check(needed, given int64, look func() (int64, map[string]int64, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.admit(needed, given, look)
}

// admit wants the lock held.
func (r *reservations) admit(needed, given int64, look func() (int64, map[string]int64, error)) error {
	available, promised, err := look()
	if err != nil {
		return nil //nolint:nilerr // A host that does not tell is tried.
	}
	maps.Copy(promised, r.starting)
	var others int64
	for _, n := range promised {
		others += n
	}
	if available += given; needed > available-others {
		return driver.Errorf(driver.ErrExhausted,
			"resource.memory: needed %d bytes, available on the host %d, of which %d are promised to other machines", needed, available, others)
	}
	return nil
}

// hostMemory is what reservations look at. Machines of other clusters and released
// ones count as any, and one whose use cannot be seen, as that of another user, as if
// it used nothing yet.
func (d *Driver) hostMemory() (available int64, promised map[string]int64, err error) {
	if available, err = memoryAvailable("/proc/meminfo"); err != nil {
		return 0, nil, err
	}
	homes, err := homesIn(d.dir)
	promised = map[string]int64{}
	for _, h := range homes {
		if on, err := h.running(); err != nil || !on {
			continue
		}
		r, err := h.load()
		if err != nil {
			continue
		}
		used, _ := sample(h.pid(r.UID)) // nothing where it fails
		promised[r.ID] = max(0, r.Settings.MemoryBytes-used.MemoryBytes)
	}
	return available, promised, err
}

func memoryAvailable(path string) (int64, error) {
	f, err := os.Open(path) //nolint:gosec // a constant
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s does not tell MemAvailable", path)
}
