// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
)

// nodeServer serves the nodes of an API server: node ready, node off, which has the taint out-of-service, and
// node broken, whose read fails, as do lists if failLists is set.
type nodeServer struct {
	failLists bool
	asked     atomic.Int32
}

func (s *nodeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked.Add(1)
	off := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "off"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}}}
	w.Header().Set("Content-Type", "application/json")
	switch name := path.Base(r.URL.Path); {
	case name == "off":
		off.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		_ = json.NewEncoder(w).Encode(off)
	case name == "nodes" && !s.failLists:
		_ = json.NewEncoder(w).Encode(corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, Items: []corev1.Node{off}})
	case name == "ready":
		ready := corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "ready"}}
		ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_ = json.NewEncoder(w).Encode(ready)
	case name == "nodes", name == "broken":
		w.WriteHeader(http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
	}
}

// TestNodesOfLists checks that a list needs few requests for the nodes of deleted pods, however many
// of these nodes do not exist, and that a node that cannot be read proves no end.
func TestNodesOfLists(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nodes     []string
		made      int // further pods, each of another node that does not exist
		failLists bool
		requests  int32
		ended     []bool
	}{
		"few":                      {[]string{"off", "off", "gone", "broken"}, 0, false, 3, []bool{true, true, true, false}},
		"many":                     {[]string{"off", "gone", ""}, 100, false, 1, []bool{true, true, false}},
		"many, and the list fails": {[]string{"off", "gone", ""}, 100, true, 1, []bool{false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &nodeServer{failLists: c.failLists}
			server := httptest.NewServer(api)
			defer server.Close()
			client := corev1client.NewForConfigOrDie(&rest.Config{Host: server.URL, QPS: -1})
			r := &Reader{Client: client, Clock: clock.RealClock{}, Log: logr.Discard(), PodAssertedOff: func(vm types.UID) types.UID { return vm }}
			nodes := c.nodes
			for n := range c.made {
				nodes = append(nodes, fmt.Sprint("made-", n))
			}
			var all []*Instance
			for n, node := range nodes {
				uid := types.UID(fmt.Sprint("pod-", n)) // the pod whose machine is asserted to be off
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, DeletionTimestamp: new(metav1.Now())}, Spec: corev1.PodSpec{NodeName: node, Containers: make([]corev1.Container, 1)}}
				all = append(all, &Instance{reader: r, UID: uid, Pod: p})
			}
			r.readNodes(t.Context(), all, false)
			n := api.asked.Load()
			assert.True(t, n == c.requests, "the API server was asked %d times, want %d", n, c.requests)
			for n, want := range c.ended {
				got := all[n].AssertedEnd()
				assert.True(t, (got != nil) == want, "the pod of node %q has the end %+v, want one: %t", nodes[n], got, want)
			}
		})
	}
}

// TestLostNodes checks which servers a complete list reports as of a node that does not report, and that an
// operator's taint counts for them although it has not deleted their pods, which may tolerate it.
func TestLostNodes(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(&nodeServer{})
	t.Cleanup(api.Close)
	client := corev1client.NewForConfigOrDie(&rest.Config{Host: api.URL, QPS: -1})
	running := corev1.ContainerStatus{Name: objects.ContainerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	copying := running
	copying.Started = new(false)
	waiting := corev1.ContainerStatus{Name: objects.ContainerName, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
	cutOff := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
	gated := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady"}, cutOff[1]}
	for name, c := range map[string]struct {
		node       string
		status     corev1.ContainerStatus
		conditions []corev1.PodCondition
		want       driver.State
		isLost     bool
		hasEnded   bool // as asserted
	}{
		"runs, a gate is false":                   {"ready", running, gated, driver.StateRunning, false, false},
		"runs, a gate is false, its node is gone": {"gone", running, gated, driver.StateRunning, true, false},
		"runs, a gate is false, node is not read": {"broken", running, gated, driver.StateRunning, false, false},
		"runs, a gate is false, on a node off":    {"off", running, gated, driver.StateStopped, false, true},
		"runs":                                    {"ready", running, nil, driver.StateRunning, false, false},
		"runs, marked by mistake":                 {"ready", running, cutOff, driver.StateRunning, false, false},
		"runs, cut off":                           {"broken", running, cutOff, driver.StateRunning, true, false},
		"runs, cut off, its node is gone":         {"gone", running, cutOff, driver.StateRunning, true, false},
		"runs, on a node out of service":          {"off", running, cutOff, driver.StateStopped, false, true},
		"copies":                                  {"ready", copying, nil, driver.StateStarting, false, false},
		"copies, its node is gone":                {"gone", copying, nil, driver.StateStarting, true, false},
		"waits, its node is gone":                 {"gone", waiting, nil, driver.StateStarting, true, false},
		"waits, its node is not read":             {"broken", waiting, nil, driver.StateStarting, false, false},
		"waits, on a node out of service":         {"off", waiting, nil, driver.StateStopped, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &Reader{Client: client, Clock: clock.RealClock{}, Log: logr.Discard(), LastStatus: neverSeen}
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}, Spec: corev1.PodSpec{NodeName: c.node, Containers: []corev1.Container{{Name: objects.ContainerName}}}}
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/lb"}} // a webhook has added it
			p.Status.ContainerStatuses, p.Status.Conditions = []corev1.ContainerStatus{c.status}, c.conditions
			i := &Instance{reader: r, UID: "vm", Pod: p}
			r.readNodes(t.Context(), []*Instance{i}, true)
			s := i.Server()
			saysLost := strings.Contains(s.Progress+fmt.Sprint(s.Err), "node "+c.node+" does not report")
			if s.State != c.want || saysLost != c.isLost || s.HostLost != (c.isLost && c.want == driver.StateRunning) || (i.AssertedEnd() != nil) != c.hasEnded {
				t.Errorf("it is %+v, want %s, lost %t, ended %t", s, c.want, c.isLost, c.hasEnded)
			}
		})
	}
}
