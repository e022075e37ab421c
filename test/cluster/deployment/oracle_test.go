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
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// TestAddContainers checks that the rules apply to containers as to servers.
func TestAddContainers(t *testing.T) {
	t.Parallel()
	const uid = types.UID("uid-1")
	for name, test := range map[string]struct {
		events string // the name of a container and its events
		state  container.ContainerState
		want   string
	}{
		"as requested":      {"first create, first update, first start", container.StateRunning, ""},
		"created twice":     {"first create, first start, another create", container.StateRunning, "O3: uid-1: create"},
		"never created":     {"first start", container.StateRunning, "O3: uid-1: change"},
		"started too often": {"first create, first start, first start", container.StateRunning, "O7: uid-1: vm-1 was started 2 times"},
		"not started":       {"first create", container.StateCreated, "O7: uid-1: vm-1 was started 0 times"},
		"removed":           {"first create, first start, first destroy", "", "O7: uid-1: delete"},
		"stopped":           {"first create, first start", container.StateExited, "O1: uid-1: vm-1: its server is Stopped"},
		"lost":              {"first create, first start", "", "O1: uid-1: vm-1: it lacks a server"},
	} {
		vm := framework.NewVM("vm-1").UID(string(uid)).Action(api.ActionActive).Obj()
		vm.Status = api.VirtualMachineStatus{
			Phase: api.PhaseActive, Server: &api.ServerStatus{ID: "first"}, Conditions: []metav1.Condition{{Type: api.ConditionReady, Status: "True"}},
		}
		e := rules.Evidence{Requested: map[types.UID]rules.Requested{uid: {Name: "vm-1", AtLeast: 1, AtMost: 1}}, VMs: map[types.UID]*api.VirtualMachine{uid: vm}}
		var recorded []ContainerEvent
		for n, event := range strings.Split(test.events, ", ") {
			id, action, _ := strings.Cut(event, " ")
			recorded = append(recorded, ContainerEvent{UID: uid, ID: id, Action: events.Action(action), At: time.Unix(int64(n), 0)})
		}
		var containers []container.Summary
		if test.state != "" {
			containers = append(containers, container.Summary{ID: "first", State: test.state, Labels: map[string]string{docker.LabelUID: string(uid)}})
		}
		addContainers(&e, recorded, containers)
		var found []string
		for _, v := range rules.Judge(e) {
			found = append(found, v.String())
		}
		all := strings.Join(found, "\n")
		assert.True(t, strings.Contains(all, test.want) && (test.want == "") == (all == ""), "%s: found %q, want %q", name, all, test.want)
	}
}
