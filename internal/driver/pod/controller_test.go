// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// startController starts the real controller for a cluster.
func startController(t *testing.T, c *framework.Cluster) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "drover-controller")
	assert.NoError(t, framework.BuildProgram(binary, "cmd/drover-controller"))
	p, err := framework.StartProcess(binary, []string{
		"--kubeconfig=" + c.Kubeconfig, "--vm-driver=pod", "--pod-access-mode=ReadWriteOnce", "--leader-elect=false",
		"--metrics-bind-address=0", "--health-probe-bind-address=0", "--usage-period=1s", "--orphan-grace=2s",
	}, nil)
	assert.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller printed:\n%s", p.Output())
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// vm is a VirtualMachine of the real controller.
type vm struct {
	w    *world
	name string
	uid  types.UID
}

func (w *world) createVM(t *testing.T, name, spec string) *vm {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cloudnative.tw/v1alpha1", "kind": "VirtualMachine", "metadata": map[string]any{"name": name}}}
	var fields map[string]any
	assert.NoError(t, json.Unmarshal([]byte(spec), &fields))
	o.Object["spec"] = fields
	created, err := w.vms.Create(t.Context(), o, metav1.CreateOptions{})
	assert.NoError(t, err)
	return &vm{w, name, created.GetUID()}
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
		if seen != o.GetGeneration() || status["phase"] != phase || !isReady || withUsage && !hasUsage {
			return fmt.Errorf("its status is %v", status)
		}
		return nil
	})
}

// TestController has the real controller run VirtualMachines, in a cluster of its own: in the shared one, it
// would reconcile those of all tests.
func TestController(t *testing.T) {
	t.Parallel()
	c := framework.StartCluster(t, framework.ClusterOptions{Args: []string{"--all-apis"}})
	startController(t, c)
	for name, test := range map[string]func(*testing.T, *world){"life": testLife, "events": testEvents, "ephemeral": testRestarts} {
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
	framework.BuildLinuxGuest(t, n.image)
	v := w.createVM(t, "web", `{
		"driver": "pod", "evictionPolicy": "Block", "deletionPolicy": "Retain", "storageClassName": "growing",
		"image": {"source": "oci://registry.example/guest:1", "kernel": {"source": "/vmlinuz", "initrd": "/initrd", "cmdline": "console=ttyS0 quiet panic=-1"}},
		"resource": {"cpu": "1", "memory": "256Mi", "rootDisk": "2Mi"}, "volumes": [{"name": "data", "size": "2Mi"}],
		"ports": [{"name": "http", "port": 80}], "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1, "timeoutSeconds": 10}
	}`)
	v.wait(t, "Active", true)
	s := &server{w: w}
	s.Namespace, s.Name, s.UID = w.namespace, v.name, v.uid
	first := s.pod(t)
	if s.budget(t) == nil || s.evict(t) == nil {
		t.Error("the server can be evicted")
	}
	v.change(t, `{"action": "paused"}`)
	v.wait(t, "Paused", false)
	v.change(t, `{"action": "active", "volumes": [{"name": "data", "size": "8Mi"}]}`)
	v.wait(t, "Active", true)
	assert.Eventually(t, "the guest's disk grows", func(t testing.TB) error {
		if disks := objects.ReadSettings(s.pod(t)).Disks; disks["data"].Bytes != 8<<20 {
			return fmt.Errorf("the disks are %+v", disks)
		}
		return nil
	})
	if p := s.pod(t); p.UID != first.UID {
		t.Errorf("the run was %s and is %s", first.UID, p.UID)
	}
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
	if held, err := s.holds(t); !held || err != nil {
		t.Errorf("the released pod is held: %v, %v", held, err)
	}
	assert.NoError(t, w.kube.CoreV1().Pods(w.namespace).Delete(t.Context(), s.base(), metav1.DeleteOptions{}))
	assert.Eventually(t, "the released pod has no finalizer", func(t testing.TB) error {
		if _, err := s.holds(t); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	if left := s.claims(t); len(left) != 2 {
		t.Errorf("the PVCs are %v", left)
	}
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
