// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
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
	w, s := newServer(t)
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
		got := s.pod(t).Labels
		assert.True(t, maps.Equal(got, want), "the pod has the labels %v, want %v", got, want)
	}
	s.deleteAll(t)
}

// TestPortNames checks that the name of a port, by which a Service may select it, waits for the next pod.
func TestPortNames(t *testing.T) {
	t.Parallel()
	_, s := newServer(t)
	s.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}}
	s.reach(t, driver.StateRunning)
	s.Ports[0].Name = "web"
	got := s.reach(t, driver.StateRunning)
	assert.True(t, slices.Equal(got.Pending, []string{"ports"}), "after a change of its name %v is pending", got.Pending)
	if got := s.restart(t); len(got.Pending) > 0 || s.pod(t).Spec.Containers[0].Ports[0].Name != "web" {
		t.Errorf("after a restart %v is pending, and the pod has the ports %v", got.Pending, s.pod(t).Spec.Containers[0].Ports)
	}
	s.deleteAll(t)
}

// TestDigestOfUserData checks that changed user-data waits for the next pod, also for another process, and
// that what the pod has of it confirms no guess.
func TestDigestOfUserData(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.UserData = driver.NewSecret("#cloud-config\npassword: guessed\n")
	s.reach(t, driver.StateRunning)
	sum := sha256.Sum256([]byte(s.UserData.Reveal()))
	text := s.pod(t).Annotations[objects.AnnotationSettings]
	assert.True(t, !strings.Contains(text, hex.EncodeToString(sum[:3])) && strings.Contains(text, "userData"), "the pod has the settings %s", text)
	s.d = w.open(t)
	got := s.reach(t, driver.StateRunning)
	assert.True(t, len(got.Pending) == 0, "another process finds %v pending", got.Pending)
	s.UserData = driver.NewSecret("#cloud-config\npassword: changed\n")
	got = s.reach(t, driver.StateRunning)
	assert.True(t, slices.Equal(got.Pending, []string{"userData"}), "after a change %v is pending", got.Pending)
	got = s.restart(t)
	assert.True(t, len(got.Pending) == 0, "after a restart %v is pending", got.Pending)
	s.deleteAll(t)
}

// TestReadiness checks that what the probe of a pod asks follows the spec, and that a pod which was
// made without a probe stays without.
func TestReadiness(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	probe := func(port int32) *driver.Probe {
		return &driver.Probe{Port: port, PeriodSeconds: 3, TimeoutSeconds: 1}
	}
	s := w.newServer(t, "probed")
	s.ReadinessProbe = probe(80)
	run := s.reach(t, driver.StateRunning).Run
	for want, change := range map[string]*driver.Probe{`{"port":80,"timeoutSeconds":1}`: probe(80), `{"port":81,"timeoutSeconds":1}`: probe(81), "": nil} {
		s.ReadinessProbe = change
		got := s.reach(t, driver.StateRunning)
		p := s.pod(t)
		if p.Annotations[objects.AnnotationReadiness] != want || got.Run != run || len(got.Pending) > 0 {
			t.Errorf("with %+v the probe asks %s in run %s, and %v is pending, want %s in %s", change, p.Annotations[objects.AnnotationReadiness], got.Run, got.Pending, want, run)
		}
		r := p.Spec.Containers[0].ReadinessProbe
		assert.True(t, r != nil && r.Exec != nil && r.PeriodSeconds == 3, "the probe of the pod is %+v, want one by exec every 3 s", r)
	}
	plain := w.newServer(t, "plain")
	plain.reach(t, driver.StateRunning)
	plain.ReadinessProbe = probe(80)
	plain.reach(t, driver.StateRunning)
	r := plain.pod(t).Spec.Containers[0].ReadinessProbe
	assert.True(t, r == nil, "a pod that was made without a probe has %+v", r)
	plain.restart(t)
	assert.True(t, plain.pod(t).Spec.Containers[0].ReadinessProbe != nil, "the next pod lacks a probe")
}
