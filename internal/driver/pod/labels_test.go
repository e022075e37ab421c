// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
)

// TestLabels checks that changed labels of a VirtualMachine get to its pod, in place of those that it had,
// and that labels which others have set on the pod stay.
func TestLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newServer(t, "web")
	s.d.reader.Owner = s.owner
	s.Labels = map[string]string{"app": "web", "tier": "front", "cloudnative.tw/uid": "forged"}
	s.reach(t, driver.StateRunning)
	s.wantNeedsEnsure(t, false)
	assert.Eventually(t, "a label of others", func(t testing.TB) error {
		p := s.pod(t)
		p.Labels["topology.kubernetes.io/zone"] = "a"
		_, err := w.kube.CoreV1().Pods(s.Namespace).Update(t.Context(), p, metav1.UpdateOptions{})
		return err
	})
	for _, labels := range []map[string]string{{"app": "web2"}, {"tier": "back"}, nil} {
		s.Labels = labels
		s.wantNeedsEnsure(t, true)
		s.reach(t, driver.StateRunning)
		s.wantNeedsEnsure(t, false)
		want := map[string]string{
			"topology.kubernetes.io/zone": "a", objects.LabelCluster: clusterID, objects.LabelUID: string(s.UID), objects.LabelName: s.Name,
		}
		maps.Copy(want, labels)
		if got := s.pod(t).Labels; !maps.Equal(got, want) {
			t.Errorf("the pod has the labels %v, want %v", got, want)
		}
	}
	s.deleteAll(t)
}

// TestPortNames checks that the name of a port, by which a Service may select it, waits for the next pod.
func TestPortNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newServer(t, "web")
	s.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}}
	s.reach(t, driver.StateRunning)
	s.Ports[0].Name = "web"
	if got := s.reach(t, driver.StateRunning); !slices.Equal(got.Pending, []string{"ports"}) {
		t.Errorf("after a change of its name %v is pending", got.Pending)
	}
	if got := s.restart(t); len(got.Pending) > 0 || s.pod(t).Spec.Containers[0].Ports[0].Name != "web" {
		t.Errorf("after a restart %v is pending, and the pod has the ports %v", got.Pending, s.pod(t).Spec.Containers[0].Ports)
	}
	s.deleteAll(t)
}
