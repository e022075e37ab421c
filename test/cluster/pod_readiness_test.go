// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// testReadiness checks that the endpoint of a Service follows a guest's readinessProbe: it becomes ready
// when the guest answers, and follows changes of the probe.
func testReadiness(t *testing.T, w *podWorld) {
	const name = "served"
	createGuestService(t, name)
	states := watchEndpoints(t, name)
	g := w.createGuest(t, name, func(spec *api.VirtualMachineSpec) {
		spec.Ephemeral = true
		spec.Ports = append(spec.Ports, api.Port{Name: "nothing", Protocol: api.ProtocolTCP, Port: 81})
		spec.ReadinessProbe = &api.Probe{TCPSocket: api.TCPSocket{Port: 80}, PeriodSeconds: 1, TimeoutSeconds: 5}
	})
	before := g.pod(t)
	first := nextState(t, states)
	assert.True(t, !first.ready && first.pod == before.UID, "the first endpoint is %+v, want that of pod %s, which is not ready", first, before.UID)
	ready := nextState(t, states)
	assert.True(t, ready.ready && strings.Contains(ready.log, "drover linux guest 1 is up"), "the endpoint becomes %+v, want ready, after the guest was up", ready)
	for _, c := range []struct {
		probe string
		ready bool
	}{
		{`{"tcpSocket":{"port":81}}`, false},
		{`{"tcpSocket":{"port":80}}`, true},
		{`{"tcpSocket":{"port":81}}`, false},
		{`null`, true},
	} {
		g.patch(t, `{"spec":{"readinessProbe":`+c.probe+`}}`)
		if got := nextState(t, states); got.ready != c.ready || got.pod != before.UID {
			t.Errorf("with readinessProbe %s the endpoint becomes %+v, want ready %t, in the pod as before", c.probe, got, c.ready)
		}
		g.waitFor(t, framework.HasCondition(api.ConditionReady, map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[c.ready]))
	}
	g.delete(t)
}

// createGuestService creates a Service for a guest.
func createGuestService(t *testing.T, guest string) *corev1.Service {
	t.Helper()
	return createService(t, podNamespace, guest, map[string]string{"cloudnative.tw/name": guest}, 80)
}

// endpointState is the state of the only endpoint of a Service.
type endpointState struct {
	pod   types.UID
	ready bool
	// log is the output of the guest up to this state.
	log string
}

// watchEndpoints returns every change of a Service's endpoint.
func watchEndpoints(t *testing.T, service string) <-chan endpointState {
	t.Helper()
	slices := shared.Client.DiscoveryV1().EndpointSlices(podNamespace)
	w, err := slices.Watch(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	assert.NoError(t, err)
	t.Cleanup(w.Stop)
	states := make(chan endpointState, 100)
	go func() {
		var last endpointState
		for event := range w.ResultChan() {
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			if event.Type == watch.Deleted || !ok || len(slice.Endpoints) != 1 || slice.Endpoints[0].TargetRef == nil {
				continue
			}
			to := slice.Endpoints[0]
			now := endpointState{pod: to.TargetRef.UID, ready: to.Conditions.Ready != nil && *to.Conditions.Ready}
			if now == last {
				continue
			}
			last = now
			now.log, _ = shared.PodLog(context.WithoutCancel(t.Context()), podNamespace, to.TargetRef.Name)
			states <- now
		}
	}()
	return states
}

func nextState(t *testing.T, states <-chan endpointState) endpointState {
	t.Helper()
	return assert.Receive(t, "the endpoint changes", states)
}
