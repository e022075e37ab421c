// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/assert"
)

// testEvents checks the events of a VirtualMachine from its creation over a drain to a stop.
func testEvents(t *testing.T, w *world) {
	v := w.createVM(t, "web", `{
		"driver": "pod", "storageClassName": "growing", "image": {"source": "oci://registry.example/boot:1", "pullPolicy": "Never"},
		"resource": {"cpu": "1", "memory": "256Mi", "rootDisk": "2Mi"}
	}`)
	v.wait(t, "Active", false)
	v.waitEvents(t, "Created", "Started")
	s := &server{w: w}
	s.Namespace, s.Name, s.UID = w.namespace, v.name, v.uid
	assert.NoError(t, s.evict(t))
	all := v.waitEvents(t, "Created", "Started", "Disrupted", "Started")
	for n, want := range map[int]string{1: "on pod, host " + nodeName, 2: "the pod was evicted, as by a drain, from node " + nodeName} {
		if !strings.Contains(all[n].Note, want) {
			t.Errorf("event %s says %q, want %q in it", all[n].Reason, all[n].Note, want)
		}
	}
	v.change(t, `{"action": "stopped"}`)
	v.wait(t, "Stopped", false)
	v.waitEvents(t, "Created", "Started", "Disrupted", "Started", "Stopped")
}

// waitEvents waits until the events of a VirtualMachine have these reasons, and returns them.
func (v *vm) waitEvents(t *testing.T, want ...string) (all []eventsv1.Event) {
	t.Helper()
	assert.Eventually(t, v.name+" has events", func(t testing.TB) error {
		listed, err := v.w.kube.EventsV1().Events(v.w.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(listed.Items, func(e eventsv1.Event) bool { return e.Regarding.UID != v.uid })
		slices.SortFunc(all, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
		var reasons []string
		for _, e := range all {
			reasons = append(reasons, e.Reason)
		}
		if !slices.Equal(reasons, want) {
			return fmt.Errorf("they are %v, want %v", reasons, want)
		}
		return nil
	})
	return all
}
