// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
)

const vmUID = types.UID("uid-1")

func atSecond(n int64) time.Time { return time.Unix(n, 0) }

// newEvidence is of one VM that a user created and Drover runs.
func newEvidence() *Evidence {
	vm := framework.NewVM("vm-1").UID(string(vmUID)).Action(api.ActionActive).Generation(1).Status(func(s *api.VirtualMachineStatus) {
		s.Phase, s.ObservedGeneration, s.Server = api.PhaseActive, 1, &api.ServerStatus{ID: "first"}
		s.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
	}).Obj()
	return &Evidence{
		Events: []ContainerEvent{
			{UID: vmUID, ID: "first", Action: events.ActionCreate, At: atSecond(1)},
			{UID: vmUID, ID: "first", Action: events.ActionStart, At: atSecond(2)},
		},
		Requested:  map[types.UID]users.Requested{vmUID: {Name: "vm-1", AtLeast: 1, AtMost: 1}},
		VMs:        map[types.UID]*api.VirtualMachine{vmUID: vm},
		Containers: []container.Summary{newContainer("first")},
	}
}

func newContainer(id string) container.Summary {
	return container.Summary{ID: id, State: container.StateRunning, Labels: map[string]string{docker.LabelUID: string(vmUID)}}
}

// addEvent adds what happens in second 3.
func (e *Evidence) addEvent(action events.Action) {
	e.Events = append(e.Events, ContainerEvent{UID: vmUID, ID: "another", Action: action, At: atSecond(3)})
}

func (e *Evidence) requestDeletion(at int64) {
	r := e.Requested[vmUID]
	r.DeletedAt = atSecond(at)
	e.Requested[vmUID] = r
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*Evidence)
		want   string
	}{
		"as requested":      {func(*Evidence) {}, ""},
		"created twice":     {func(e *Evidence) { e.addEvent(events.ActionCreate) }, "2 containers were created"},
		"started too often": {func(e *Evidence) { e.addEvent(events.ActionStart) }, "was started 2 times"},
		"not started":       {func(e *Evidence) { e.Events = e.Events[:1] }, "was started 0 times"},
		"removed":           {func(e *Evidence) { e.addEvent(events.ActionDestroy) }, "no user had requested that"},
		"removed before":    {func(e *Evidence) { e.requestDeletion(4); e.addEvent(events.ActionDestroy) }, "no user had requested that"},
		"unknown":           {func(e *Evidence) { delete(e.Requested, vmUID) }, "no user requested it"},
		"still there":       {func(e *Evidence) { e.requestDeletion(4) }, "was deleted and still exists"},
		"VM gone":           {func(e *Evidence) { delete(e.VMs, vmUID) }, "it is gone"},
		"no container":      {func(e *Evidence) { e.Containers = nil }, "has 0 containers"},
		"two containers":    {func(e *Evidence) { e.Containers = append(e.Containers, newContainer("second")) }, "has 2 containers"},
		"orphan": {func(e *Evidence) {
			e.requestDeletion(4)
			delete(e.VMs, vmUID)
		}, "has no VirtualMachine"},
		"stopped":    {func(e *Evidence) { e.Containers[0].State = container.StateExited }, "is exited for action"},
		"another id": {func(e *Evidence) { e.Containers[0].ID = "second" }, "its status has"},
		"not ready":  {func(e *Evidence) { e.VMs[vmUID].Status.Conditions = nil }, "its status is"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEvidence()
			test.change(e)
			found := strings.Join(Judge(*e), "\n")
			if !strings.Contains(found, test.want) || (test.want == "") != (found == "") {
				t.Errorf("found %q, want %q", found, test.want)
			}
		})
	}
}
