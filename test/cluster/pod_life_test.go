// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
)

// testService lets a pod of another node reach the guest's web server through a Service, also in the
// guest's next pod, after the guest was restarted with other resources.
func testService(t *testing.T, g *guest) {
	client := runPod(t, "client", otherNode(t, g.pod(t)))
	url := "http://" + createGuestService(t, g.name).Spec.ClusterIP
	before := g.checkServed(t, client, url)
	testResize(t, g)
	after := g.checkServed(t, client, url)
	got := after.Disks["vda"].Size
	assert.True(t, got == grownDisk, "after a restart the disk has %d bytes, want %d", got, grownDisk)
	more := after.MemoryKiB - before.MemoryKiB
	assert.True(t, more >= 30<<10, "after a restart the guest has %d KiB more memory, want nearly 32 MiB", more)
}

// otherNode returns a node that a pod does not run on.
func otherNode(t *testing.T, pod *corev1.Pod) *cluster.Node {
	t.Helper()
	for _, node := range shared.Nodes() {
		if node.Name != pod.Spec.NodeName {
			return node
		}
	}
	t.Fatal("there is no other node")
	return nil
}

// guestReport is the guest's report about its boot.
type guestReport struct {
	Boots, MemoryKiB int
	Disks            map[string]struct{ Size int64 }
}

// checkServed checks the guest's answer to a request of a pod.
func (g *guest) checkServed(t *testing.T, client *corev1.Pod, url string) (report guestReport) {
	t.Helper()
	got := get(t, client.Name, url)
	if err := json.Unmarshal([]byte(got), &report); err != nil || report.Boots != g.boots {
		t.Errorf("%s on %s gets %q from %s, want the guest of boot %d: %v", client.Name, client.Spec.NodeName, got, url, g.boots, err)
	}
	return report
}

const grownDisk = 96 << 20

// testResize enlarges the disk of a running guest at once, and its memory at the next restart.
func testResize(t *testing.T, g *guest) {
	before := g.pod(t)
	g.patch(t, fmt.Sprintf(`{"spec":{"resource":{"rootDisk":"%d"}}}`, grownDisk))
	assert.Eventually(t, "the disk of the running machine has grown", func(t testing.TB) error {
		return hasOpenFile(processOf(t, "qemu-system", string(g.uid)), grownDisk)
	})
	g.waitFor(t, framework.HasCondition(api.ConditionRestartRequired, ""))
	g.checkUndisturbed(t, before)
	g.patch(t, `{"spec":{"resource":{"memory":"224Mi"}}}`)
	g.waitFor(t, framework.HasCondition(api.ConditionRestartRequired, metav1.ConditionTrue))
	g.checkRunsIn(t, before)
	g.patch(t, fmt.Sprintf(`{"spec":{"restartedAt":%q}}`, time.Now().UTC().Format(time.RFC3339)))
	g.waitRun(t, before.UID)
	g.waitFor(t, framework.HasCondition(api.ConditionRestartRequired, ""))
}

// hasOpenFile returns an error unless a process has a file of a size open.
func hasOpenFile(pid int, size int64) error {
	var sizes []int64
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, name := range names {
		info, err := os.Stat(name)
		switch {
		case err != nil || !info.Mode().IsRegular():
		case info.Size() == size:
			return nil
		default:
			sizes = append(sizes, info.Size())
		}
	}
	return fmt.Errorf("the files of process %d have the sizes %v, want %d", pid, sizes, size)
}

// blockEviction makes the API refuse the guest's eviction, which adds an object, and checks that findLeft
// finds every kind of thing while the guest runs.
func (g *guest) blockEviction(t *testing.T) {
	t.Helper()
	g.patch(t, fmt.Sprintf(`{"spec":{"evictionPolicy":%q}}`, api.EvictionBlock))
	assert.Eventually(t, "all of "+g.name+" is found", func(t testing.TB) error {
		left, err := g.findLeft(t.Context())
		for _, kind := range []string{"v1.Pod ", "v1.PersistentVolumeClaim ", "v1.Secret ", "v1.PodDisruptionBudget ", "of QEMU", "drover-machine of pod"} {
			if err == nil && !strings.Contains(fmt.Sprint(left), kind) {
				err = fmt.Errorf("there is no %s in %v", kind, left)
			}
		}
		return err
	})
}

// findLeft returns the objects of the guest in its namespace, and its processes on all nodes.
func (g *guest) findLeft(ctx context.Context) (left []string, err error) {
	of := metav1.ListOptions{LabelSelector: objects.LabelUID + "=" + string(g.uid)}
	core := shared.Client.CoreV1()
	pods, err1 := core.Pods(g.namespace).List(ctx, of)
	claims, err2 := core.PersistentVolumeClaims(g.namespace).List(ctx, of)
	secrets, err3 := core.Secrets(g.namespace).List(ctx, of)
	budgets, err4 := shared.Client.PolicyV1().PodDisruptionBudgets(g.namespace).List(ctx, of)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	for _, list := range []runtime.Object{pods, claims, secrets, budgets} {
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			left = append(left, fmt.Sprintf("%T %s", o, o.(metav1.Object).GetName()))
			return nil
		})
	}
	if pid, ok := findProcess("qemu-system", string(g.uid)); ok {
		left = append(left, fmt.Sprintf("process %d of QEMU", pid))
	}
	for pod := range runningMachines()[objects.BaseName(g.name, g.uid)] {
		left = append(left, fmt.Sprintf("drover-machine of pod %s", pod))
	}
	return left, nil
}

// checkNothingLeft checks that nothing is left of a guest that was deleted.
func (g *guest) checkNothingLeft(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "nothing is left of "+g.name, func(t testing.TB) error {
		left, err := g.findLeft(t.Context())
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%s is left", strings.Join(left, ", "))
		}
		return err
	})
}

// checkNoGuestLeft checks that nothing is left of all guests, which were deleted.
func (c *podController) checkNoGuestLeft(t *testing.T) {
	t.Helper()
	for _, g := range c.guests {
		g.checkNothingLeft(t)
	}
}
