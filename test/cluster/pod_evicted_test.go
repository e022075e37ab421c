// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// TestPodEvicted makes kubelets evict guests, and a container runtime lose a running machine. Each guest starts
// again, but not before the processes of its last run have ended: the oracle sees them, regardless of the
// kubelet's reports.
func TestPodEvicted(t *testing.T) {
	tier.Full(t, "it takes three minutes; TestRecordedPods in package instance has the reports of these kubelets")
	w := newPodWorld(t)
	limitEphemeralStorage(t, w.namespace)
	var guests []*guest
	for n := range 4 {
		guests = append(guests, w.requestGuest(t, fmt.Sprintf("evicted%d", n), func(spec *api.VirtualMachineSpec) { spec.Ephemeral = n == 0 }))
	}
	for _, g := range guests {
		g.waitRun(t, "")
	}
	t.Run("evicted", func(t *testing.T) { testEvicted(t, guests) })
	t.Run("runtime lost", func(t *testing.T) { testRuntimeLost(t, guests[1]) })
	for _, g := range guests {
		g.delete(t)
	}
	w.checkNoGuestLeft(t)
}

// limitEphemeralStorage sets a low default limit for the ephemeral storage of containers, which includes their logs.
func limitEphemeralStorage(t *testing.T, namespace string) {
	t.Helper()
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "logs"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("20Mi")},
	}}}}
	_, err := shared.Client.CoreV1().LimitRanges(namespace).Create(t.Context(), limits, metav1.CreateOptions{})
	assert.NoError(t, err)
}

// testEvicted makes the log of each guest exceed its limit. The guest's processes are stopped, so that the kubelet
// has to kill the container, and may remove it before it has reported the end.
func testEvicted(t *testing.T, guests []*guest) {
	before := map[*guest]*corev1.Pod{}
	for _, g := range guests {
		before[g] = g.pod(t)
		for _, p := range processesOf(t, before[g]) {
			assert.NoError(t, syscall.Kill(p, syscall.SIGSTOP))
		}
		g.fillLog(t)
	}
	for _, g := range guests {
		g.waitRun(t, before[g].UID)
	}
}

// processesOf returns the processes in the control groups of a pod, except its sandbox's.
func processesOf(t *testing.T, pod *corev1.Pod) (all []int) {
	t.Helper()
	processes, err := procfs.AllProcs()
	assert.NoError(t, err)
	for _, p := range processes {
		comm, _ := p.Comm()
		groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
		if comm != "pause" && bytes.Contains(groups, []byte("/pod"+pod.UID+"/")) {
			all = append(all, p.PID)
		}
	}
	return all
}

// fillLog writes more to the log of the guest's container than any limit of the test allows.
func (g *guest) fillLog(t *testing.T) {
	t.Helper()
	pod := g.pod(t)
	limit := pod.Spec.Containers[0].Resources.Limits[corev1.ResourceEphemeralStorage]
	path := filepath.Join(g.node(t).Dir, "log", "pods", fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID), "machine", "0.log")
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	assert.NoError(t, err)
	line := []byte(strings.Repeat("x", 1<<20-1) + "\n")
	for written := int64(0); err == nil && written <= limit.Value(); written += int64(len(line)) {
		_, err = file.Write(line)
	}
	assert.NoError(t, errors.Join(err, file.Close()))
}

// testRuntimeLost makes containerd lose all its state while a machine runs, whose processes are frozen and so cannot
// be killed. The kubelet reports the container as lost, and the guest is reported as lost until these processes have ended.
func testRuntimeLost(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	thaw := freezePod(t, node, before)
	loseRuntime(t, node)
	g.waitFor(t, framework.HasPhase(api.PhaseUnknown, api.ReasonPodLost))
	assert.Check(t, "the guest is lost while its machine runs", func(t testing.TB) error {
		if !runningMachines()[before.Name][before.UID] {
			return errors.New("its machine has ended")
		}
		pod, err := g.findPod(t)
		if err == nil && (pod == nil || pod.UID != before.UID || pod.Status.ContainerStatuses[0].State.Waiting == nil) {
			err = fmt.Errorf("its pod is %v", pod)
		}
		return err
	})
	thaw()
	g.waitRun(t, before.UID)
}

// freezePod freezes the processes of a pod's containers until the returned function is called, or the test ends.
func freezePod(t *testing.T, node *cluster.Node, pod *corev1.Pod) (thaw func()) {
	t.Helper()
	assert.Require(t, pod.Status.QOSClass == corev1.PodQOSGuaranteed,
		"pod %s is %s, want %s, whose control group is looked up", pod.UID, pod.Status.QOSClass, corev1.PodQOSGuaranteed)
	groups, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/freezer", shared.ControlGroup(node.Name), "kubepods", "pod"+string(pod.UID), "*", "freezer.state"))
	assert.Require(t, err == nil && len(groups) != 0, "pod %s has the control groups %v, %v", pod.UID, groups, err)
	set := func(state string) (err error) {
		for _, group := range groups {
			err = errors.Join(err, os.WriteFile(group, []byte(state), 0o644))
		}
		return err
	}
	assert.NoError(t, set("FROZEN"))
	t.Cleanup(func() { _ = set("THAWED") }) // the groups may be gone
	return func() { assert.NoError(t, set("THAWED")) }
}

// loseRuntime removes all state of a node's containerd while containers run, starts it again, and imports the
// images.
func loseRuntime(t *testing.T, node *cluster.Node) {
	t.Helper()
	run := fmt.Sprintf("/proc/%d/root/run/containerd", processOf(t, "kubelet", node.Dir))
	lib := filepath.Join(node.Dir, "lib", "containerd")
	assert.NoError(t, node.KillContainerd())
	for _, dir := range []string{"io.containerd.runtime.v2.task", "io.containerd.grpc.v1.cri", "s", "runc"} { // of tasks, sandboxes, shims and runc
		assert.NoError(t, os.RemoveAll(filepath.Join(run, dir)))
	}
	assert.NoError(t, errors.Join(os.Rename(lib, lib+".lost"), node.StartContainerd()))
	assert.Eventually(t, "the node has the image of its sandboxes", func(t testing.TB) error {
		return node.ImportImage(t.Context(), filepath.Join(shared.Dir, "probe.tar"))
	})
	isMachineImported = false
	importMachine(t)
}
