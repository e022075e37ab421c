// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
)

// neverSeen is the LastStatus of a Reader whose machines have not been asked yet.
func neverSeen(types.UID) (status control.Status, ok bool) { return status, false }

func terminated(code int32, reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: objects.ContainerName, ContainerID: "containerd://1", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message, FinishedAt: metav1.Unix(1000, 0)},
	}}
}

// onNode returns a pod that was bound to a node, with changes.
func onNode(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: objects.ContainerName}}}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func withStatuses(all ...corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = all }
}

func withPhase(phase corev1.PodPhase, reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = phase, reason }
}

// failedBy has a manager of fields write the phase Failed, and the states of containers if it is a kubelet.
func failedBy(manager, fields string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodFailed
		p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, Subresource: "status", FieldsV1: metav1.NewFieldsV1(fields)})
	}
}

func withBoot(p *corev1.Pod) {
	p.Annotations = map[string]string{objects.AnnotationBoot: "system/boot"}
}

const (
	phaseAlone    = `{"f:status":{"f:phase":{}}}`
	phaseAndState = `{"f:status":{"f:phase":{},"f:containerStatuses":{}}}`
)

func byKubelet(p *corev1.Pod) { failedBy("kubelet", phaseAndState)(p) }

func withCondition(c corev1.PodCondition) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions = append(p.Status.Conditions, c) }
}

func deleted(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(2000, 0)} }

func TestProvenEnd(t *testing.T) {
	t.Parallel()
	running := corev1.ContainerStatus{Name: objects.ContainerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	waiting := corev1.ContainerStatus{Name: objects.ContainerName, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
	unknown := corev1.ContainerStatus{Name: objects.ContainerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}}
	lost := unknown
	lost.RestartCount = 1
	deletedLost := unknown
	deletedLost.LastTerminationState = unknown.State
	withID := lost
	withID.ContainerID = "containerd://1"
	stillWaits := waiting
	stillWaits.LastTerminationState = unknown.State
	initially := func(s corev1.ContainerState) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "first"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "first", State: s}}
		}
	}
	debugged := func(s ...corev1.ContainerStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
			p.Status.EphemeralContainerStatuses = s
		}
	}
	other := func(s corev1.ContainerStatus) corev1.ContainerStatus { s.Name = "debug"; return s }
	ended := terminated(0, "Completed", "")
	sidecar := func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "added"}) }
	disrupted := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC"}
	preempted := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet}
	neverRan := &driver.Exit{Code: 137, Reason: driver.ExitNeverRan}
	wasLost := &driver.Exit{Code: 137, Reason: ends.ReasonInferred}
	tests := map[string]struct {
		pod  *corev1.Pod
		want *driver.Exit
	}{
		"never bound, to be deleted":        {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}, &driver.Exit{Reason: driver.ExitNeverRan}},
		"never bound":                       {&corev1.Pod{}, nil},
		"bound, nothing reported":           {onNode(deleted), nil},
		"runs":                              {onNode(withStatuses(running)), nil},
		"runs, deleted":                     {onNode(deleted, withStatuses(running)), nil},
		"runs, phase Failed":                {onNode(withPhase(corev1.PodFailed, "NodeLost"), withStatuses(running)), nil},
		"waits, deleted":                    {onNode(deleted, withStatuses(waiting)), nil},
		"terminated":                        {onNode(withStatuses(terminated(0, "Completed", ""))), &driver.Exit{Reason: "Completed"}},
		"terminated, with drover's reason":  {onNode(withStatuses(terminated(3, "Error", `{"reason":"GuestPanicked"}`))), &driver.Exit{Code: 3, Reason: "GuestPanicked"}},
		"terminated, by a signal":           {onNode(withStatuses(terminated(0, "Completed", `{"reason":"Completed","stopRequested":true}`))), &driver.Exit{Reason: "Completed", StopRequested: true}},
		"out of memory, with a message":     {onNode(withStatuses(terminated(137, ends.ReasonOOMKilled, `{"reason":"Completed"}`))), &driver.Exit{Code: 137, Reason: ends.ReasonOOMKilled}},
		"deleted while an image is pulled":  {onNode(deleted, byKubelet, withStatuses(unknown)), neverRan},
		"drained while an image is pulled":  {onNode(deleted, byKubelet, byDrain, withStatuses(unknown)), neverRan},
		"the same, of a collected pod":      {onNode(deleted, byKubelet, withCondition(disrupted), withStatuses(unknown)), nil},
		"the same, of another disruption":   {onNode(deleted, byKubelet, targeted("DeletionByNewcomer", "why"), withStatuses(unknown)), nil},
		"the same, failed by another":       {onNode(deleted, failedBy("kube-controller-manager", phaseAlone), withStatuses(unknown)), nil},
		"the same, before the pod's end":    {onNode(deleted, withStatuses(unknown)), nil},
		"lost, its group removed":           {onNode(byKubelet, withStatuses(lost)), wasLost},
		"lost, its group removed, deleted":  {onNode(deleted, byKubelet, withStatuses(deletedLost)), wasLost},
		"lost, its group removed, evicted":  {onNode(byKubelet, withPhase(corev1.PodFailed, "Evicted"), withStatuses(lost)), wasLost},
		"lost, its group removed, ran":      {onNode(deleted, byKubelet, withBoot, withStatuses(unknown)), wasLost},
		"lost, a sidecar runs":              {onNode(byKubelet, sidecar, withStatuses(lost, corev1.ContainerStatus{Name: "added", State: running.State})), nil},
		"lost, waiting":                     {onNode(deleted, byKubelet, withStatuses(stillWaits)), nil},
		"lost, waiting, evicted":            {onNode(byKubelet, withPhase(corev1.PodFailed, "Evicted"), withStatuses(stillWaits)), nil},
		"lost, by the runtime's report":     {onNode(byKubelet, withStatuses(withID)), nil},
		"lost, not failed":                  {onNode(withPhase(corev1.PodRunning, ""), withStatuses(lost)), nil},
		"lost, failed by another":           {onNode(failedBy("kube-controller-manager", phaseAlone), withStatuses(lost)), nil},
		"lost, of a collected pod":          {onNode(byKubelet, withCondition(disrupted), withStatuses(lost)), nil},
		"deleted while it is initialized":   {onNode(deleted, byKubelet, initially(unknown.State), withStatuses(waiting)), neverRan},
		"deleted before it is initialized":  {onNode(deleted, byKubelet, initially(waiting.State), withStatuses(waiting)), neverRan},
		"the same, by the kubelet of k3s":   {onNode(deleted, failedBy("k3s", phaseAndState), initially(waiting.State), withStatuses(waiting)), neverRan},
		"the same, before the pod's end ":   {onNode(deleted, initially(waiting.State), withStatuses(waiting)), nil},
		"created, its pod has ended":        {onNode(deleted, byKubelet, withStatuses(corev1.ContainerStatus{Name: objects.ContainerName, ContainerID: "x", State: waiting.State})), nil},
		"ended, and a debugger never began": {onNode(byKubelet, debugged(other(waiting)), withStatuses(ended)), &driver.Exit{Reason: "Completed"}},
		"ended, and a debugger came late":   {onNode(byKubelet, debugged(), withStatuses(ended)), &driver.Exit{Reason: "Completed"}},
		"ended, and a debugger was lost":    {onNode(byKubelet, debugged(other(lost)), withStatuses(ended)), &driver.Exit{Reason: "Completed"}},
		"ended, and a debugger runs":        {onNode(byKubelet, debugged(other(running)), withStatuses(ended)), nil},
		"ended, and a debugger may begin":   {onNode(debugged(other(waiting)), withStatuses(ended)), nil},
		"ended, failed by another":          {onNode(failedBy("kubectl", phaseAlone), debugged(other(waiting)), withStatuses(ended)), nil},
		"no disk":                           {onNode(withStatuses(terminated(7, "Error", `{"reason":"NotStarted"}`))), &driver.Exit{Code: 7, Reason: driver.ExitNotStarted}},
		"terminated, a sidecar unreported":  {onNode(sidecar, withStatuses(terminated(0, "Completed", ""))), nil},
		"terminated, a sidecar runs":        {onNode(sidecar, withStatuses(terminated(0, "Completed", ""), corev1.ContainerStatus{Name: "added"})), nil},
		"rejected by the kubelet":           {onNode(withPhase(corev1.PodFailed, "OutOfcpu")), &driver.Exit{Code: 1, Reason: driver.ExitRejected}},
		"preempted by the kubelet":          {onNode(withPhase(corev1.PodFailed, "Preempting"), withCondition(preempted)), &driver.Exit{Code: 1, Reason: driver.ExitRejected}},
		"failed by the collector of pods":   {onNode(withPhase(corev1.PodFailed, "NodeLost"), withCondition(disrupted)), nil},
		"failed without a reason":           {onNode(withPhase(corev1.PodFailed, "")), nil},
		"succeeded without a report":        {onNode(withPhase(corev1.PodSucceeded, "Completed")), nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ends.ProvenEnd(tc.pod)
			if (got == nil) != (tc.want == nil) || got != nil && (got.Code != tc.want.Code || got.Reason != tc.want.Reason || got.StopRequested != tc.want.StopRequested) {
				t.Errorf("the proven end is %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestAssertedEnd(t *testing.T) {
	t.Parallel()
	node := func(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
		for _, key := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key})
		}
		return n
	}
	tests := map[string]struct {
		node     *corev1.Node
		asserted bool
		want     bool
	}{
		"an unreachable node":                     {node(corev1.ConditionUnknown, corev1.TaintNodeUnreachable), false, false},
		"a node out of service":                   {node(corev1.ConditionUnknown, corev1.TaintNodeUnreachable, corev1.TaintNodeOutOfService), false, true},
		"a node that its kubelet reports as down": {node(corev1.ConditionFalse, corev1.TaintNodeOutOfService), false, true},
		"a ready node out of service":             {node(corev1.ConditionTrue, corev1.TaintNodeOutOfService), false, false},
		"asserted, on an unreachable node":        {node(corev1.ConditionUnknown), true, true},
		"asserted, on a ready node":               {node(corev1.ConditionTrue), true, false},
		"asserted, on a node that is gone":        {nil, true, true},
		"a node that is gone":                     {nil, false, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ends.AssertedEnd(tc.node, tc.asserted, time.Unix(1, 0))
			assert.True(t, (got != nil) == tc.want && (got == nil || got.Reason == ends.ExitAsserted), "the asserted end is %+v, want one: %t", got, tc.want)
		})
	}
}

// TestRecordedEnd checks that a claim proves the end of the pod that it names and of no other.
func TestRecordedEnd(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		annotations map[string]string
		lost        bool
	}{
		"no pod ever ran":      {nil, false},
		"a pod that ended":     {map[string]string{objects.AnnotationRun: "a", objects.AnnotationEnd: `{"pod":"a"}`}, false},
		"a pod without end":    {map[string]string{objects.AnnotationRun: "a"}, true},
		"another pod's end":    {map[string]string{objects.AnnotationRun: "b", objects.AnnotationEnd: `{"pod":"a"}`}, true},
		"an assertion":         {map[string]string{objects.AnnotationRun: "c"}, false},
		"a pod that never ran": {map[string]string{objects.AnnotationRun: "b", objects.AnnotationEnd: `{"pod":"a"}`, objects.AnnotationNeverRan: "b"}, false},
		"another never ran":    {map[string]string{objects.AnnotationRun: "b", objects.AnnotationNeverRan: "a"}, true},
		"a damaged record":     {map[string]string{objects.AnnotationRun: "a", objects.AnnotationEnd: `{"pod":"a"`}, true},
		"an end of no pod":     {map[string]string{objects.AnnotationRun: "a", objects.AnnotationEnd: `{}`}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &Instance{Asserted: "c", Claims: Claims{objects.RootDisk: {ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}}}
			assert.Equal(t, "it is lost", i.Claims.lacksEnd(i.Asserted), tc.lost)
		})
	}
}

// TestDisksOfASeenRun checks that a run which the status has seen has made its disks, also if its kubelet
// reports only that the container has ended.
func TestDisksOfASeenRun(t *testing.T) {
	t.Parallel()
	reader := &Reader{LastStatus: neverSeen}
	pod := onNode(withStatuses(terminated(137, "ContainerStatusUnknown", "")))
	pod.UID, pod.Spec.Containers = "seen", []corev1.Container{{Name: "added"}, {Name: objects.ContainerName, StartupProbe: &corev1.Probe{}}}
	for seen, want := range map[string]bool{"seen": true, "another": false, "": false} {
		got := (&Instance{reader: reader, Pod: pod, seenRun: seen}).HasMadeDisk(objects.RootDisk)
		assert.True(t, got == want, "after run %q was seen: made %t, want %t", seen, got, want)
	}
}

// TestDisksOfAMachineThatWasNotStarted checks which disks count as made of a machine whose guest never ran.
func TestDisksOfAMachineThatWasNotStarted(t *testing.T) {
	t.Parallel()
	reader := &Reader{LastStatus: neverSeen}
	for message, want := range map[string][]string{
		``:                        nil,
		`{"reason":"NotStarted"}`: nil,
		`{"reason":"NotStarted","disks":{"root":true}}`:                    {objects.RootDisk},
		`{"reason":"NotStarted","disks":{"root":true,"volumes":["data"]}}`: {objects.RootDisk, "data"},
		`{"reason":"Panicked"}`:                                            {objects.RootDisk, "data", "more"},
	} {
		pod := onNode(withStatuses(terminated(7, "Error", message)))
		pod.UID = "pod"
		pod.Spec.Containers = []corev1.Container{{Name: "added"}, {Name: objects.ContainerName, StartupProbe: &corev1.Probe{}}}
		i := &Instance{reader: reader, Pod: pod}
		var got []string
		for _, disk := range []string{objects.RootDisk, "data", "more"} {
			if i.HasMadeDisk(disk) {
				got = append(got, disk)
			}
		}
		assert.True(t, slices.Equal(got, want), "%s: the disks made are %q, want %q", message, got, want)
	}
}
