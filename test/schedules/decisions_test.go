// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/decisions"
	"cloudnative.tw/drover/internal/controller/decisions/recorder"
	"cloudnative.tw/drover/test/framework/rules"
)

// newRecorder returns a recorder for the decisions of a process, which outlives it.
func (p *process) newRecorder(epoch func() uint64) *recorder.Recorder {
	r := recorder.New(recorder.Options{Replica: p.name, Version: "schedules", Epoch: epoch, Clock: p.clock})
	p.world.judge.recorders = append(p.world.judge.recorders, r)
	return r
}

// decisions returns those that were kept of all processes, the newest last.
func (j *judge) decisions() (all []decisions.Record) {
	seen := map[types.NamespacedName]bool{}
	for _, c := range j.world.api.log {
		vm, ok := c.object.(*api.VirtualMachine)
		if !ok || seen[types.NamespacedName{Namespace: vm.Namespace, Name: vm.Name}] {
			continue
		}
		key := types.NamespacedName{Namespace: vm.Namespace, Name: vm.Name}
		seen[key] = true
		for _, r := range j.recorders {
			all = append(all, r.History(key).Decisions...)
		}
	}
	slices.SortStableFunc(all, func(a, b decisions.Record) int { return a.At().Compare(b.At()) })
	return all
}

// replayDecisions derives them again.
func (j *judge) replayDecisions(all []decisions.Record) {
	j.world.faults.counts["decisions derived again"] += len(all)
	j.report(rules.CheckDecisions(all)...)
}
