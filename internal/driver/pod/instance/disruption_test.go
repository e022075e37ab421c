// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
)

func targeted(reason, message string) func(*corev1.Pod) {
	return withCondition(corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message})
}

var byDrain = targeted("EvictionByEvictionAPI", "Eviction API: evicting")

func TestDisruption(t *testing.T) {
	t.Parallel()
	reported := withStatuses(terminated(0, "Completed", ""))
	tests := map[string]struct {
		pod  *corev1.Pod
		here bool
		want string
	}{
		"runs":                            {onNode(), false, ""},
		"has ended":                       {onNode(reported), false, ""},
		"is drained":                      {onNode(deleted, byDrain), false, "the pod was evicted, as by a drain, from node n1 (Eviction API: evicting)"},
		"was drained, and has ended":      {onNode(deleted, byDrain, reported), true, "the pod was evicted, as by a drain, from node n1 (Eviction API: evicting)"},
		"is to be preempted, and was not": {onNode(targeted(corev1.PodReasonPreemptionByScheduler, "x")), false, ""},
		"preempted":                       {onNode(deleted, targeted(corev1.PodReasonPreemptionByScheduler, "a higher priority")), false, "the pod was preempted on node n1 (a higher priority)"},
		"no longer a target":              {onNode(withCondition(corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, Reason: "x"})), false, ""},
		"by a later kind":                 {onNode(deleted, targeted("DeletionByNewcomer", "why")), false, "the pod was disrupted by DeletionByNewcomer on node n1 (why)"},
		"evicted by the kubelet":          {onNode(withPhase(corev1.PodFailed, "Evicted"), reported, targeted(corev1.PodReasonTerminationByKubelet, "The node was low on resource: memory")), false, "the pod was ended by the kubelet of node n1 (The node was low on resource: memory)"},
		"failed by the kubelet":           {onNode(withPhase(corev1.PodFailed, "Terminated"), reported), false, "the pod failed on node n1 (Terminated)"},
		"rejected by the kubelet":         {onNode(withPhase(corev1.PodFailed, "OutOfcpu")), false, ""},
		"deleted by somebody":             {onNode(deleted), false, "the pod was deleted"},
		"deleted by this driver":          {onNode(deleted, reported), true, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := (&Instance{Pod: tc.pod, IsDeletedHere: tc.here}).Disruption()
			assert.True(t, got == tc.want, "got %q, want %q", got, tc.want)
		})
	}
}

// TestEvicted checks which ends of pods count as evictions by the kubelet, which back off if they repeat, and
// that the record of an end has that.
func TestEvicted(t *testing.T) {
	t.Parallel()
	reported := withStatuses(terminated(137, "Error", ""))
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"by its reason":        {onNode(withPhase(corev1.PodFailed, "Evicted"), reported), true},
		"by its condition":     {onNode(withPhase(corev1.PodFailed, "Terminated"), reported, targeted(corev1.PodReasonTerminationByKubelet, "x")), true},
		"crashed":              {onNode(withPhase(corev1.PodFailed, ""), reported), false},
		"drained":              {onNode(deleted, byDrain, reported), false},
		"preempted":            {onNode(deleted, targeted(corev1.PodReasonPreemptionByScheduler, "x"), reported), false},
		"deleted for a taint":  {onNode(deleted, targeted("DeletionByTaintManager", "x"), reported), false},
		"deleted by somebody":  {onNode(deleted, reported), false},
		"asked to stop":        {onNode(withPhase(corev1.PodSucceeded, ""), withStatuses(terminated(0, "Completed", `{"reason":"Completed","stopRequested":true}`))), true},
		"asked by a deletion":  {onNode(deleted, withStatuses(terminated(0, "Completed", `{"reason":"Completed","stopRequested":true}`))), false},
		"a target that is not": {onNode(reported, withCondition(corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, Reason: corev1.PodReasonTerminationByKubelet})), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.pod.UID = "run-1"
			i := &Instance{Pod: tc.pod, Claims: Claims{objects.RootDisk: {}}}
			record, err := i.EndRecord()
			assert.NoError(t, err)
			metav1.SetMetaDataAnnotation(&i.Claims.Root().ObjectMeta, objects.AnnotationEnd, record)
			end, kept := i.End(), i.Claims.lastEnd().Exit
			assert.True(t, end != nil && end.Evicted == tc.want && kept.Evicted == tc.want, "the end is %+v, and its record has %+v", end, kept)
		})
	}
}

// TestRecordedEvictions checks the same of pods that real kubelets have reported, and that Drover's deadline for
// other containers is not taken for a disruption.
func TestRecordedEvictions(t *testing.T) {
	t.Parallel()
	for name, evicted := range map[string]bool{"evicted-shut-down": true, "evicted-reported": true, "sidecar-ended": false} {
		for _, p := range recordedPods(t, name) {
			i := &Instance{Pod: p}
			if end := i.End(); end == nil || end.Evicted != evicted || !evicted && i.Disruption() != "" || ends.HasOnlyMachineEnded(p) {
				t.Errorf("%s: the end is %+v, %q", name, end, i.Disruption())
			}
		}
	}
}

// TestRecordedDisruption checks that the disruption lasts beyond the pod, and that the deletion of a pod
// that had ended before is not taken for one.
func TestRecordedDisruption(t *testing.T) {
	t.Parallel()
	pod := onNode(deleted, byDrain, withStatuses(terminated(0, "Completed", "")))
	pod.UID = "run-1"
	i := &Instance{Pod: pod, Claims: Claims{objects.RootDisk: {}}}
	record, err := i.EndRecord()
	assert.NoError(t, err)
	metav1.SetMetaDataAnnotation(&i.Claims.Root().ObjectMeta, objects.AnnotationEnd, record)
	i.Pod = nil
	s := i.Server()
	assert.True(t, s.State == driver.StateStopped && strings.Contains(s.Disruption, "evicted"), "the server is %+v", s)
	older, err := json.Marshal(endRecord{Pod: pod.UID, Exit: &driver.Exit{Reason: "Completed"}})
	assert.NoError(t, err)
	metav1.SetMetaDataAnnotation(&i.Claims.Root().ObjectMeta, objects.AnnotationEnd, string(older))
	i.Pod = onNode(deleted, withStatuses(terminated(0, "Completed", "")))
	i.Pod.UID = pod.UID
	assert.Equal(t, "a pod that had ended before it was deleted has", i.Disruption(), "")
}

// TestServerOfADrainedPod checks what is said while the pod ends, and where it is.
func TestServerOfADrainedPod(t *testing.T) {
	t.Parallel()
	reader := &Reader{Clock: testingclock.NewFakePassiveClock(time.Unix(0, 0)), LastStatus: neverSeen}
	s := (&Instance{reader: reader, Pod: onNode(deleted, byDrain), Asserted: "other"}).Server()
	if s.State != driver.StateStopping || s.Host != "n1" || !strings.HasPrefix(s.Progress, "the pod ends on node n1") || !strings.HasPrefix(s.Disruption, "the pod was evicted, as by a drain") {
		t.Errorf("the server is %+v", s)
	}
	for ready, isTold := range map[corev1.ConditionStatus]bool{corev1.ConditionTrue: false, corev1.ConditionUnknown: true} {
		plain := (&Instance{reader: reader, Pod: onNode(deleted), Asserted: "other", node: nodeState{object: nodeOf("s", "a", ready, 0)}}).Server()
		assert.True(t, strings.HasPrefix(plain.Progress, "the pod ends on node n1") && strings.Contains(plain.Progress, "power it off") == isTold,
			"a pod that was deleted on a node whose readiness is %s says %q", ready, plain.Progress)
	}
}

// TestServerWithAnotherContainer checks what is said of a machine that has ended while another container of
// its pod has not, and that no proof of the pod's end is seen in that.
func TestServerWithAnotherContainer(t *testing.T) {
	t.Parallel()
	reader := &Reader{Clock: testingclock.NewFakePassiveClock(time.Unix(0, 0)), LastStatus: neverSeen}
	pod := onNode(withStatuses(terminated(5, "Error", ""), corev1.ContainerStatus{Name: "other", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}))
	pod.Spec.Containers = []corev1.Container{{Name: objects.ContainerName}, {Name: "other"}}
	i := &Instance{reader: reader, Pod: pod, Asserted: "other"}
	s := i.Server()
	assert.True(t, i.End() == nil && s.State == driver.StateStopping && s.Exit != nil && s.Exit.Code == 5, "the server is %+v, its end %+v", s, i.End())
}

func TestUnschedulable(t *testing.T) {
	t.Parallel()
	refused := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available"}
	waits := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{refused}}}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{"refused": {waits, true}, "not looked at yet": {&corev1.Pod{}, false}, "placed": {onNode(), false}} {
		reader := &Reader{Clock: testingclock.NewFakePassiveClock(time.Unix(0, 0)), LastStatus: neverSeen}
		s := (&Instance{reader: reader, Pod: tc.pod, Asserted: "other"}).Server()
		assert.True(t, s.State == driver.StateStarting && s.IsUnschedulable == tc.want, "%s: the server is %+v", name, s)
	}
}

// TestEndOfAGuestBesideASidecar checks that the end of a guest is shown while a sidecar runs on, also if
// the pod is deleted then.
func TestEndOfAGuestBesideASidecar(t *testing.T) {
	t.Parallel()
	reader := &Reader{
		Clock:          testingclock.NewFakePassiveClock(time.Unix(0, 0)),
		PodAssertedOff: func(types.UID) types.UID { return "" }, LastStatus: neverSeen,
	}
	for _, isDeleted := range []bool{false, true} {
		pod := onNode(withStatuses(terminated(3, "Error", ""), corev1.ContainerStatus{Name: "added", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}))
		pod.UID = "run"
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "added"})
		if isDeleted {
			pod.DeletionTimestamp = new(metav1.Now())
		}
		i := &Instance{reader: reader, Pod: pod}
		s := i.Server()
		assert.True(t, s.NeedsEnsure != isDeleted, "deleted %t, an Ensure is asked for: %t", isDeleted, s.NeedsEnsure)
		objects.SetEndDeadline(pod)
		kept, err := stripObject(pod.DeepCopy())
		assert.True(t, !(&Instance{reader: reader, Pod: kept.(*corev1.Pod)}).Server().NeedsEnsure && err == nil,
			"deleted %t, an Ensure is asked for again, %v", isDeleted, err)
		s = i.Server()
		assert.True(t, s.State == driver.StateStopping && s.Exit != nil && s.Exit.Code == 3, "deleted %t: %s, %+v", isDeleted, s.State, s.Exit)
	}
}
