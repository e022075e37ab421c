// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"os"
	"path/filepath"
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

// nodeOf returns a node with a system UUID and a boot ID. Its kubelet has posted its status at the time posted, in seconds.
func nodeOf(system, boot string, ready corev1.ConditionStatus, posted int64) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Status.NodeInfo.SystemUUID, n.Status.NodeInfo.BootID = system, boot
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.Unix(posted, 0)}}
	return n
}

// TestLostMachine checks what ends a run whose container the runtime has lost: another boot of the same system,
// or an assertion about this pod, also while the node is ready. Until then the server is lost, and says so.
func TestLostMachine(t *testing.T) {
	t.Parallel()
	lost := corev1.ContainerStatus{Name: objects.ContainerName, RestartCount: 1, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
	lost.LastTerminationState = terminated(137, ends.ReasonInferred, "").State
	for name, tc := range map[string]struct {
		node     *corev1.Node
		recorded string
		asserted types.UID
		refused  bool
		want     string // the reason of the end
	}{
		"the same boot":                    {nodeOf("s", "a", corev1.ConditionTrue, 0), "s/a", "", false, ""},
		"another boot":                     {nodeOf("s", "b", corev1.ConditionTrue, 0), "s/a", "", false, ends.ReasonInferred},
		"another boot, lost again":         {nodeOf("s", "b", corev1.ConditionUnknown, 0), "s/a", "", false, ends.ReasonInferred},
		"another system of that name":      {nodeOf("other", "b", corev1.ConditionTrue, 0), "s/a", "", false, ""},
		"a boot that was not recorded":     {nodeOf("s", "b", corev1.ConditionTrue, 0), "", "", false, ""},
		"a damaged record":                 {nodeOf("s", "b", corev1.ConditionTrue, 0), "s", "", false, ""},
		"a node without a boot":            {nodeOf("s", "", corev1.ConditionTrue, 0), "s/a", "", false, ""},
		"a system without a name":          {nodeOf("", "b", corev1.ConditionTrue, 0), "/a", "", false, ""},
		"a node that is gone":              {nil, "s/a", "", false, ""},
		"asserted":                         {nodeOf("s", "a", corev1.ConditionTrue, 0), "s/a", "run", false, ends.ExitAsserted},
		"asserted, of a node that is gone": {nil, "", "run", false, ends.ExitAsserted},
		"asserted of another pod":          {nodeOf("s", "a", corev1.ConditionTrue, 0), "s/a", "other", false, ""},
		"asserted before the loss":         {nodeOf("s", "a", corev1.ConditionTrue, 0), "s/a", "run", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := onNode(byKubelet, withStatuses(lost))
			p.UID, p.Annotations = "run", map[string]string{objects.AnnotationBoot: tc.recorded}
			if tc.refused {
				p.Annotations[objects.AnnotationAssertionRefused] = "true"
			}
			reader := &Reader{Clock: testingclock.NewFakePassiveClock(time.Unix(0, 0)), PodAssertedOff: func(types.UID) types.UID { return "" }, LastStatus: neverSeen}
			i := &Instance{reader: reader, Pod: p, Asserted: tc.asserted, node: nodeState{object: tc.node}, Key: types.NamespacedName{Namespace: "ns", Name: "web"}}
			got := ""
			if exit := i.End(); exit != nil {
				got = exit.Reason
			}
			assert.Require(t, got == tc.want, "the end is %q, want %q", got, tc.want)
			refuses, _ := i.RefusesAssertion()
			s := i.Server()
			isLost := s.State == driver.StateUnknown && s.Err != nil && strings.Contains(s.Err.Error(), "has not seen the end of the machine's container in pod ns/web") && i.Lost() != ""
			assert.True(t, isLost == (tc.want == "") && s.Run == "run" && refuses == tc.refused,
				"the server is %+v, lost %q, an assertion is refused: %t", s, i.Lost(), refuses)
		})
	}
}

// recordedPods returns a pod that a real kubelet has reported, in full and as an informer keeps it.
func recordedPods(t *testing.T, name string) [2]*corev1.Pod {
	t.Helper()
	recorded, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	assert.NoError(t, err)
	p := new(corev1.Pod)
	assert.NoError(t, json.Unmarshal(recorded, p))
	kept, err := stripObject(p.DeepCopy())
	assert.NoError(t, err)
	return [2]*corev1.Pod{p, kept.(*corev1.Pod)}
}

// TestRecordedPods checks the end of pods as real kubelets have reported them. The recordings say whether the machine of
// each pod ran. A container that is lost in an eviction, or by its runtime, may run; once its kubelet has removed the
// pod's control group, no process runs, even if the processes could not be killed before.
func TestRecordedPods(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"evicted-shut-down":          "Completed", // within the second that an eviction leaves
		"evicted-reported":           "Killed",
		"evicted-lost":               "",
		"evicted-group-removed":      ends.ReasonInferred,
		"runtime-lost":               "", // its machine ran
		"runtime-lost-failed":        "", // its machine ran, and could not be killed
		"runtime-lost-group-removed": ends.ReasonInferred,
		"sidecar-ended":              "Error", // by the pod's deadline, after the machine
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, p := range recordedPods(t, name) {
				got := ""
				if exit := ends.ProvenEnd(p); exit != nil {
					got = exit.Reason
				}
				assert.Equal(t, "the end", got, want)
			}
		})
	}
}

// TestUnrecordedBoot checks that a boot is recorded only as the node has it since the container was started: an
// older status may be from the boot before.
func TestUnrecordedBoot(t *testing.T) {
	t.Parallel()
	running := corev1.ContainerStatus{Name: objects.ContainerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(100, 0)}}}
	for name, tc := range map[string]struct {
		node     *corev1.Node
		status   corev1.ContainerStatus
		recorded string
		want     string
	}{
		"a later status":             {nodeOf("s", "a", corev1.ConditionTrue, 101), running, "", "s/a"},
		"a status of the same time":  {nodeOf("s", "a", corev1.ConditionTrue, 100), running, "", ""},
		"an older status":            {nodeOf("s", "a", corev1.ConditionTrue, 99), running, "", ""},
		"a status of no kubelet":     {nodeOf("s", "a", corev1.ConditionUnknown, 101), running, "", ""},
		"recorded":                   {nodeOf("s", "b", corev1.ConditionTrue, 101), running, "s/a", ""},
		"a machine that waits":       {nodeOf("s", "a", corev1.ConditionTrue, 101), corev1.ContainerStatus{Name: objects.ContainerName}, "", ""},
		"a machine that has ended":   {nodeOf("s", "a", corev1.ConditionTrue, 101), terminated(0, "Completed", ""), "", ""},
		"a node that says no system": {nodeOf("", "a", corev1.ConditionTrue, 101), running, "", ""},
		"a node that is gone":        {nil, running, "", ""},
	} {
		p := onNode(withStatuses(tc.status))
		p.Annotations = map[string]string{objects.AnnotationBoot: tc.recorded}
		assert.Equal(t, name+": to be recorded", (&Instance{Pod: p, node: nodeState{object: tc.node}}).UnrecordedBoot(), tc.want)
	}
}

// TestStrippedPod checks that informers keep what proves the end of a pod that never ran, and nothing of a pod
// that runs.
func TestStrippedPod(t *testing.T) {
	t.Parallel()
	never := onNode(deleted, byKubelet, withStatuses(corev1.ContainerStatus{Name: objects.ContainerName}))
	never.ManagedFields = append(never.ManagedFields, metav1.ManagedFieldsEntry{Manager: "drover", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)})
	kept, err := stripObject(never.DeepCopy())
	p, ok := kept.(*corev1.Pod)
	assert.True(t, err == nil && ok && ends.ProvenEnd(p) != nil && len(p.ManagedFields) == 1, "kept is %+v, %v", kept, err)
	never.Status.Phase = corev1.PodRunning
	kept, err = stripObject(never)
	assert.True(t, err == nil && len(kept.(*corev1.Pod).ManagedFields) == 0, "of a pod that runs, %+v is kept, %v", kept, err)
}
