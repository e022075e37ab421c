// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/standalone/internal/bytesize"
	"cloudnative.tw/drover/standalone/internal/storekeeper"
	"cloudnative.tw/drover/standalone/internal/storequota"
)

// StoreUsage reads the usage of the API's store.
func StoreUsage(ctx context.Context, client rest.Interface) (*storekeeper.Usage, error) {
	text, err := client.Get().AbsPath(storekeeper.UsagePath).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the usage of the store: %w", err)
	}
	usage := &storekeeper.Usage{}
	if err := json.Unmarshal(text, usage); err != nil {
		return nil, fmt.Errorf("read the usage of the store: %w", err)
	}
	return usage, nil
}

// storeFacts are facts about the store of the API.
type storeFacts struct {
	usage   *storekeeper.Usage
	err     error  // why the usage is unknown
	skipped bool   // Drover is not running
	kubectl string // the command line of drover kubectl
}

func gatherStore(ctx context.Context, h *Host) storeFacts {
	if !h.isDroverRunning() {
		return storeFacts{skipped: true}
	}
	f := storeFacts{kubectl: h.commandLine("kubectl")}
	config, err := h.ClientConfig()
	if err != nil {
		f.err = err
		return f
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		f.err = err
		return f
	}
	f.usage, f.err = StoreUsage(ctx, client.RESTClient())
	return f
}

// warnPercent is the percentage of the quota from which a check warns, before the store is crowded and refuses objects.
const warnPercent = storequota.CrowdedPercent - 10

func judgeStore(f storeFacts) []findings.Finding {
	if f.skipped {
		return nil
	}
	if f.err != nil {
		return oneFinding(findings.Note("the usage of the store is unknown: %v", f.err).Means("Whether there is room for more objects is unknown."))
	}
	u := f.usage
	text := fmt.Sprintf("objects use %s of the %s that --store-quota allows; etcd's file is %s, of which %s is in use, and may grow to %s",
		bytesize.Format(u.Objects), bytesize.Format(u.Quota), bytesize.Format(u.File), bytesize.Format(u.InUse), bytesize.Format(u.FileLimit))
	switch {
	case u.IsFull:
		return oneFinding(f.addRemedy(findings.Error("%s: the file is full", text).Means("Nothing can be stored or changed. Deletions work, and Drover makes the freed space usable within seconds.")))
	case u.Objects >= u.Quota/100*warnPercent:
		return oneFinding(f.addRemedy(findings.Warning("%s", text).Means("Above %d %% of the quota, a namespace that exceeds its share can store only a little more. The largest namespaces: %s.", storequota.CrowdedPercent, formatLargest(u))))
	}
	return oneFinding(findings.OK("%s", text))
}

// addRemedy adds the advice to delete objects, and the command that lists the objects of the largest namespace.
func (f storeFacts) addRemedy(problem findings.Finding) findings.Finding {
	problem = problem.FixedBy("delete objects that are not needed, or start Drover with a larger --store-quota, which needs more memory")
	for _, n := range f.usage.Largest {
		if n.Name != "" {
			return problem.FixedByCommand("%s --namespace %s get configmaps,secrets,events,leases,vms", f.kubectl, printable.ShellWord(n.Name))
		}
	}
	return problem
}

// formatLargest lists the largest namespaces with their sizes.
func formatLargest(u *storekeeper.Usage) string {
	parts := make([]string, 0, len(u.Largest))
	for _, n := range u.Largest {
		name := n.Name
		if name == "" {
			name = "cluster-scoped objects"
		}
		parts = append(parts, name+" "+bytesize.Format(n.Bytes))
	}
	return strings.Join(parts, ", ")
}
