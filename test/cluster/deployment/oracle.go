// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/framework/users"
)

// Evidence is the complete input of the oracle.
type Evidence struct {
	// Events are the engine's, in its order.
	Events []ContainerEvent
	// Requested is what users requested, for all VirtualMachines that ever existed.
	Requested map[types.UID]users.Requested
	// VMs and Containers are those that exist at the end.
	VMs        map[types.UID]*api.VirtualMachine
	Containers []container.Summary
}

// Judge returns what should not have happened: containers that were created twice, started
// more or less often than requested, or removed without a request; and what is not as users
// left it at the end.
func Judge(e Evidence) []string {
	var found []string
	report := func(uid types.UID, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s (%s): %s", e.Requested[uid].Name, uid, fmt.Sprintf(format, args...)))
	}
	byUID := map[types.UID][]ContainerEvent{}
	for _, event := range e.Events {
		byUID[event.UID] = append(byUID[event.UID], event)
	}
	for _, uid := range slices.Sorted(maps.Keys(byUID)) {
		judgeHistory(uid, byUID[uid], e.Requested[uid], report)
	}
	e.judgeEnd(report)
	return found
}

type reportFunc func(uid types.UID, format string, args ...any)

func judgeHistory(uid types.UID, history []ContainerEvent, requested users.Requested, report reportFunc) {
	if requested.Name == "" {
		report(uid, "there is a container for it, and no user requested it")
		return
	}
	created, started := 0, 0
	for _, event := range history {
		isRequested := !requested.DeletedAt.IsZero() && !event.At.Before(requested.DeletedAt)
		switch {
		case event.Action == events.ActionCreate:
			created++
		case event.Action == events.ActionStart:
			started++
		case event.Action == events.ActionDestroy && !isRequested:
			report(uid, "container %.12s was removed at %s, and no user had requested that", event.ID, event.At.UTC().Format(time.StampMilli))
		}
	}
	if created != 1 {
		report(uid, "%d containers were created", created)
	}
	if started < requested.AtLeast || started > requested.AtMost {
		report(uid, "its container was started %d times: %d to %d times were requested", started, requested.AtLeast, requested.AtMost)
	}
}

// judgeEnd checks that every VirtualMachine that users left has its one container, as they
// left it, and that nothing is left of the others.
func (e Evidence) judgeEnd(report reportFunc) {
	containers := map[types.UID][]container.Summary{}
	for _, c := range e.Containers {
		uid := types.UID(c.Labels[docker.LabelUID])
		containers[uid] = append(containers[uid], c)
	}
	for uid, requested := range e.Requested {
		vm := e.VMs[uid]
		switch {
		case !requested.DeletedAt.IsZero() && vm != nil:
			report(uid, "it was deleted and still exists")
		case requested.DeletedAt.IsZero() && vm == nil:
			report(uid, "it is gone")
		case vm != nil && len(containers[uid]) != 1:
			report(uid, "it has %d containers", len(containers[uid]))
		case vm != nil:
			judgeContainer(vm, containers[uid][0], report)
		}
	}
	for uid, all := range containers {
		if e.VMs[uid] == nil {
			report(uid, "container %.12s has no VirtualMachine", all[0].ID)
		}
	}
}

func judgeContainer(vm *api.VirtualMachine, c container.Summary, report reportFunc) {
	states := map[api.Action]container.ContainerState{
		api.ActionActive: container.StateRunning, api.ActionStopped: container.StateExited, api.ActionPaused: container.StatePaused,
	}
	if err := users.CheckApplied(vm); err != nil {
		report(vm.UID, "%v", err)
	}
	state := c.State
	if state == container.StateCreated {
		state = container.StateExited // it was never started, because none requested that
	}
	if state != states[vm.Spec.Action] {
		report(vm.UID, "its container is %s for action %s", c.State, vm.Spec.Action)
	}
	if vm.Status.Server == nil || vm.Status.Server.ID != c.ID {
		report(vm.UID, "its container is %.12s, and its status has %+v", c.ID, vm.Status.Server)
	}
}
