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

// StoreUsage asks the API what it stores.
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

// storeFacts are about the store of the API.
type storeFacts struct {
	usage   *storekeeper.Usage
	err     error // why the usage is not known
	skipped bool  // Drover does not run
	kubectl string
}

func gatherStore(ctx context.Context, h *Host) storeFacts {
	if !h.runs() {
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

// warnPercent is the part of the quota from which on a large object may be refused already.
const warnPercent = storequota.CrowdedPercent - 10

func judgeStore(f storeFacts) []findings.Finding {
	if f.skipped {
		return nil
	}
	if f.err != nil {
		return oneFinding(findings.Note("the API does not say what it stores: %v", f.err).Means("Whether there is room for more objects is unknown."))
	}
	u := f.usage
	text := fmt.Sprintf("objects use %s of the %s that --store-quota allows; etcd's file has %s, of which %s are in use, and may grow to %s",
		bytesize.Format(u.Objects), bytesize.Format(u.Quota), bytesize.Format(u.File), bytesize.Format(u.InUse), bytesize.Format(u.FileLimit))
	switch {
	case u.IsFull:
		return oneFinding(f.addRemedy(findings.Error("%s: the file is full", text).Means("Nothing can be stored or changed. Deletions work, and Drover makes their room usable within seconds.")))
	case u.Objects >= u.Quota/100*warnPercent:
		return oneFinding(f.addRemedy(findings.Warning("%s", text).Means("Above %d %%, a namespace that has more than its share can store little more. The largest: %s.", storequota.CrowdedPercent, largestOf(u))))
	}
	return oneFinding(findings.OK("%s", text))
}

// addRemedy adds the commands that show and delete what the largest namespace has.
func (f storeFacts) addRemedy(problem findings.Finding) findings.Finding {
	problem = problem.FixedBy("delete objects that are not needed, or start Drover with a larger --store-quota, which needs more memory")
	for _, n := range f.usage.Largest {
		if n.Name != "" {
			return problem.FixedByCommand("%s --namespace %s get configmaps,secrets,events,leases,vms", f.kubectl, printable.ShellWord(n.Name))
		}
	}
	return problem
}

func largestOf(u *storekeeper.Usage) string {
	parts := make([]string, 0, len(u.Largest))
	for _, n := range u.Largest {
		name := n.Name
		if name == "" {
			name = "objects outside of namespaces"
		}
		parts = append(parts, name+" "+bytesize.Format(n.Bytes))
	}
	return strings.Join(parts, ", ")
}
