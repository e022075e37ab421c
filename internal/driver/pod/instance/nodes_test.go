// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// nodeServer serves the nodes of an API server: node off, which has the taint out-of-service, and node
// broken, whose read fails, as do lists if failLists is set.
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
			r := &Reader{Client: client, Clock: clock.RealClock{}, Log: logr.Discard(), AssertedOff: func(vm types.UID) types.UID { return vm }}
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
			if n := api.asked.Load(); n != c.requests {
				t.Errorf("the API server was asked %d times, want %d", n, c.requests)
			}
			for n, want := range c.ended {
				if got := all[n].AssertedEnd(); (got != nil) != want {
					t.Errorf("the pod of node %q has the end %+v, want one: %t", nodes[n], got, want)
				}
			}
		})
	}
}
