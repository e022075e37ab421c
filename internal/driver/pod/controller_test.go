// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// startController starts the real controller for a cluster.
func startController(t *testing.T, c *framework.Cluster) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "drover-controller")
	assert.NoError(t, framework.BuildController(binary))
	p, err := framework.StartProcess(binary, []string{
		"--kubeconfig=" + c.Kubeconfig, "--vm-driver=pod", "--pod-access-mode=ReadWriteOnce", "--leader-elect=false",
		"--metrics-bind-address=0", "--health-probe-bind-address=0", "--usage-period=1s", "--orphan-grace=2s",
	}, nil)
	assert.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller printed:\n%s", p.Output())
		}
		assert.NoError(t, p.Stop())
	})
}

// vm is a VirtualMachine of the real controller.
type vm struct {
	w    *world
	name string
	uid  types.UID
}

func (w *world) createVM(t *testing.T, spec string) *vm {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cloudnative.tw/v1alpha1", "kind": "VirtualMachine", "metadata": map[string]any{"name": "web"}}}
	var fields map[string]any
	assert.NoError(t, json.Unmarshal([]byte(spec), &fields))
	o.Object["spec"] = fields
	created, err := w.vms.Create(t.Context(), o, metav1.CreateOptions{})
	assert.NoError(t, err)
	return &vm{w, created.GetName(), created.GetUID()}
}

// change merges a patch into the spec.
func (v *vm) change(t *testing.T, patch string) {
	t.Helper()
	assert.NoError(t, assert.ErrorOf(v.w.vms.Patch(t.Context(), v.name, types.MergePatchType, []byte(`{"spec":`+patch+`}`), metav1.PatchOptions{})))
}

// wait waits until the status is about the latest spec and is Ready, and has a phase and, if they are
// asked for, rates of usage.
func (v *vm) wait(t *testing.T, phase string, withUsage bool) {
	t.Helper()
	assert.Eventually(t, v.name+" is "+phase, func(t testing.TB) error {
		o, err := v.w.vms.Get(t.Context(), v.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, _ := unstructured.NestedMap(o.Object, "status")
		seen, _, _ := unstructured.NestedInt64(status, "observedGeneration")
		conditions, _, _ := unstructured.NestedSlice(status, "conditions")
		isReady := slices.ContainsFunc(conditions, func(c any) bool {
			m, ok := c.(map[string]any)
			return ok && m["type"] == "Ready" && m["status"] == "True"
		})
		_, hasUsage, _ := unstructured.NestedMap(status, "server", "usage")
		return assert.ErrorUnless(seen == o.GetGeneration() && status["phase"] == phase && isReady && (!withUsage || hasUsage), "its status is %v", status)
	})
}

// waitPassed waits until the driver has confirmed the spec. Before that, a later pass may apply it once more, which is
// an event.
func (v *vm) waitPassed(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "the spec of "+v.name+" is passed to the driver", func(t testing.TB) error {
		o, err := v.w.vms.Get(t.Context(), v.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		passed, _, _ := unstructured.NestedInt64(o.Object, "status", "server", "generation")
		return assert.ErrorUnless(passed == o.GetGeneration(), "generation %d of %d is passed", passed, o.GetGeneration())
	})
}

// TestController has the real controller run VirtualMachines, in a separate cluster: in the shared one, it
// would reconcile those of all tests.
func TestController(t *testing.T) {
	t.Parallel()
	c := framework.StartCluster(t, framework.ClusterOptions{Args: []string{"--all-apis"}})
	startController(t, c)
	for name, test := range map[string]func(*testing.T, *world){"life": testLife, "events": testEvents, "ephemeral": testRestarts, "changed": testChangedPods, "sidecar": testSidecar} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorldIn(t, c))
		})
	}
}

// testLife lets users change a VirtualMachine whose machine is real, with a Linux guest that is probed, from
// its creation to the end of its released pod.
func testLife(t *testing.T, w *world) {
	n := w.newNode(t)
	framework.BuildLinuxGuest(t, n.Image)
	v := w.createVM(t, `{
		"driver": "pod", "evictionPolicy": "Block", "deletionPolicy": "Retain", "storageClassName": "growing",
		"image": {"source": "oci://registry.example/guest:1", "kernel": {"source": "/vmlinuz", "initrd": "/initrd", "cmdline": "`+framework.GuestCmdline+`"}},
		"resource": {"cpu": "1", "memory": "256Mi", "rootDisk": "2Mi"}, "volumes": [{"name": "data", "size": "2Mi"}],
		"ports": [{"name": "http", "port": 80}], "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1, "timeoutSeconds": 10}
	}`)
	v.wait(t, "Active", true)
	s := &server{w: w}
	s.Namespace, s.Name, s.UID = w.namespace, v.name, v.uid
	first := s.pod(t)
	assert.True(t, s.budget(t) != nil && s.evict(t) != nil, "the server can be evicted")
	v.change(t, `{"action": "paused"}`)
	v.wait(t, "Paused", false)
	v.change(t, `{"action": "active", "volumes": [{"name": "data", "size": "8Mi"}]}`)
	v.wait(t, "Active", true)
	assert.Eventually(t, "the guest's disk grows", func(t testing.TB) error {
		disks := objects.ReadSettings(s.pod(t)).Disks
		return assert.ErrorUnless(disks["data"].Bytes == 8<<20, "the disks are %+v", disks)
	})
	assert.Equal(t, fmt.Sprintf("the run was %s and", first.UID), s.pod(t).UID, first.UID)
	v.change(t, `{"evictionPolicy": "Allow"}`)
	v.wait(t, "Active", true)

	assert.NoError(t, w.vms.Delete(t.Context(), v.name, metav1.DeleteOptions{}))
	assert.Eventually(t, "the VirtualMachine is gone", func(t testing.TB) error {
		_, err := w.vms.Get(t.Context(), v.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
	held, err := s.holds(t)
	assert.True(t, held && err == nil, "the released pod is held: %v, %v", held, err)
	assert.NoError(t, w.kube.CoreV1().Pods(w.namespace).Delete(t.Context(), s.base(), metav1.DeleteOptions{}))
	assert.Eventually(t, "the released pod has lost its finalizer", func(t testing.TB) error {
		if _, err := s.holds(t); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	left := s.claims(t)
	assert.True(t, len(left) == 2, "the PVCs are %v", left)
	w.wantNoWarnings(t)
}

// wantNoWarnings checks that nothing has failed on the way.
func (w *world) wantNoWarnings(t *testing.T) {
	t.Helper()
	events, err := w.kube.EventsV1().Events(w.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "type=Warning"})
	assert.NoError(t, err)
	for _, e := range events.Items {
		t.Errorf("event %s: %s", e.Reason, e.Note)
	}
}

// testEvents checks the events of a VirtualMachine from its creation over a drain to a stop.
func testEvents(t *testing.T, w *world) {
	v := w.createVM(t, `{
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
		assert.True(t, strings.Contains(all[n].Note, want), "event %s says %q, want %q in it", all[n].Reason, all[n].Note, want)
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
		return assert.ErrorUnless(slices.Equal(reasons, want), "they are %v, want %v", reasons, want)
	})
	return all
}

// testRestarts checks that one request restarts an ephemeral VirtualMachine once, and that its crashes count,
// although nothing is left of it between two pods.
func testRestarts(t *testing.T, w *world) {
	begun := 0
	w.kubelet.Set(func(k *podtest.Kubelet) {
		begin := k.Begin
		k.Begin = func(p *corev1.Pod) (string, func() (int32, string), error) {
			begun++
			return begin(p)
		}
	})
	v := w.createVM(t, `{
		"driver": "pod", "ephemeral": true, "image": {"source": "oci://registry.example/boot:1", "pullPolicy": "Never"},
		"resource": {"cpu": "1", "memory": "256Mi"}
	}`)
	v.wait(t, "Active", false)
	s := &server{w: w}
	s.Namespace, s.Name, s.UID = w.namespace, v.name, v.uid
	for n, isSlow := range []bool{true, false} {
		first := s.pod(t)
		w.kubelet.Set(func(k *podtest.Kubelet) { k.IsSlow = isSlow })
		v.change(t, fmt.Sprintf(`{"restartedAt": "2026-01-02T03:04:0%dZ"}`, n))
		if isSlow {
			s.removeSlowly(t)
		}
		v.waitRun(t, first)
		w.kubelet.Set(func(*podtest.Kubelet) {
			assert.True(t, begun == n+2, "%d pods were begun, want %d", begun, n+2)
		})
	}
	w.kubelet.Set(func(k *podtest.Kubelet) { k.MakesDisks = true })
	const crashes = 3
	for range crashes {
		assert.Eventually(t, "the next pod ends", func(t testing.TB) error { return s.endNotStarted(t, `"message": "a test"`) })
	}
	assert.Eventually(t, "the crashes are counted", func(t testing.TB) error {
		status := v.status(t)
		got, _, _ := unstructured.NestedInt64(status, "operation", "attempts")
		return assert.ErrorUnless(got == crashes, "its status is %v", status)
	})
}

// removeSlowly lets the kubelet remove a pod only after its end is recorded.
func (s *server) removeSlowly(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "the end of the pod is recorded", func(t testing.TB) error {
		held, err := s.holds(t)
		if held {
			return fmt.Errorf("it has its finalizer: %w", err)
		}
		return err
	})
	s.w.kubelet.Set(func(k *podtest.Kubelet) { k.IsSlow = false })
}

// endNotStarted ends a pod that has begun, whose machine says that it could not start its guest, and why.
func (s *server) endNotStarted(t testing.TB, why string) (err error) {
	t.Helper()
	s.w.kubelet.Set(func(k *podtest.Kubelet) {
		p, getErr := s.w.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), s.base(), metav1.GetOptions{})
		if getErr != nil {
			err = getErr
			return
		}
		stop, runs := k.Running[p.UID]
		if !runs {
			err = fmt.Errorf("pod %s has not begun", p.UID)
			return
		}
		_, _ = stop()
		err = k.EndPod(t.Context(), p, 7, `{"reason": "NotStarted", `+why+`}`)
	})
	return err
}

func (v *vm) status(t testing.TB) map[string]any {
	t.Helper()
	o, err := v.w.vms.Get(t.Context(), v.name, metav1.GetOptions{})
	assert.NoError(t, err)
	status, _, _ := unstructured.NestedMap(o.Object, "status")
	return status
}

// waitRun waits until the VirtualMachine has a pod other than the last one, which runs, and the request for
// a restart is done.
func (v *vm) waitRun(t *testing.T, last *corev1.Pod) {
	t.Helper()
	assert.Eventually(t, v.name+" runs again", func(t testing.TB) error {
		o, err := v.w.vms.Get(t.Context(), v.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		wanted, _, _ := unstructured.NestedString(o.Object, "spec", "restartedAt")
		done, _, _ := unstructured.NestedString(o.Object, "status", "restartedAt")
		run, _, _ := unstructured.NestedString(o.Object, "status", "server", "run")
		phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		return assert.ErrorUnless(phase == "Active" && run != string(last.UID) && done == wanted, "its status is %v", o.Object["status"])
	})
}
