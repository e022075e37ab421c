// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"strconv"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/framework/rules"
)

// addContainers adds to the evidence the events of containers, in the form of a driver's journal in which each
// start is a run, and the containers that exist at the end.
func addContainers(e *rules.Evidence, recorded []ContainerEvent, containers []container.Summary) {
	last := map[types.UID]*journal.Snapshot{}
	for n, event := range recorded {
		entry := journal.Entry{At: event.At, UID: event.UID, Before: last[event.UID]}
		switch event.Action {
		case events.ActionCreate:
			entry.Action, entry.After = journal.ActionCreate, &journal.Snapshot{ID: event.ID}
		case events.ActionStart:
			entry.Action, entry.After = journal.ActionChange, &journal.Snapshot{ID: event.ID, Run: strconv.Itoa(n)}
		case events.ActionDestroy:
			entry.Action = journal.ActionDelete
		default:
			continue
		}
		last[event.UID] = entry.After
		e.Journal = append(e.Journal, entry)
	}
	for _, c := range containers {
		uid := types.UID(c.Labels[docker.LabelUID])
		e.Servers = append(e.Servers, rules.Server{
			UID: uid, ID: c.ID, Name: c.Labels[docker.LabelName], State: states[c.State], CPUMilli: rules.UnknownCPU, Snapshot: last[uid],
		})
	}
}

// states has the state of a server for each state of its container. A container that was only created counts as
// stopped, because no user requested its start.
var states = map[container.ContainerState]driver.State{
	container.StateRunning: driver.StateRunning, container.StatePaused: driver.StatePaused,
	container.StateExited: driver.StateStopped, container.StateCreated: driver.StateStopped,
}
