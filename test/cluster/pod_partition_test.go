// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
)

// longCut is longer than the time after which a cluster acts on a node that does not report, and than
// Drover's period of checking all servers.
const longCut = 35 * time.Second

// testLongCut cuts the connection of the nodes of guests that could be started on other nodes, for longer than
// every timeout. A pod without tolerations is evicted in this time.
func testLongCut(t *testing.T, guests []*guest) {
	nodes, before := map[string]*cluster.Node{}, map[*guest]*corev1.Pod{}
	for _, g := range guests {
		before[g] = g.pod(t)
		nodes[before[g].Spec.NodeName] = g.node(t)
	}
	evicted := runEvictable(t, "evicted", before[guests[0]].Spec.NodeName)
	for _, node := range nodes {
		assert.NoError(t, node.CutLink())
	}
	for _, g := range guests {
		g.waitLost(t, nodes[before[g].Spec.NodeName])
	}
	assert.Eventually(t, "another pod is evicted", func(t testing.TB) error {
		pod, err := shared.Client.CoreV1().Pods(evicted.Namespace).Get(t.Context(), evicted.Name, metav1.GetOptions{})
		if err == nil && pod.DeletionTimestamp == nil {
			err = errors.New("it is not evicted")
		}
		return err
	})
	for begin := time.Now(); time.Since(begin) < longCut; time.Sleep(time.Second) {
		for _, g := range guests {
			assert.NoError(t, g.checkUntouched(t, before[g].UID)) // nothing is started elsewhere
		}
	}
	for _, node := range nodes {
		assert.NoError(t, node.RestoreLink())
		waitForNode(t, node, true)
	}
	for _, g := range guests {
		g.checkUndisturbed(t, before[g])
	}
}

// checkUntouched returns an error unless the guest still has the same pod, without a deletion timestamp, and
// its VirtualMachine is reported as lost.
func (g *guest) checkUntouched(t *testing.T, before types.UID) error {
	t.Helper()
	pod, err := g.findPod(t)
	if err != nil || pod == nil || pod.UID != before || pod.DeletionTimestamp != nil {
		return fmt.Errorf("the pod of %s was %s and is %+v, %w", g.name, before, pod, err)
	}
	vm, err := g.vms.Get(t.Context(), g.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return isLost(vm)
}

// runEvictable runs a pod that is evicted when its node is lost.
func runEvictable(t *testing.T, name, node string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: node, TerminationGracePeriodSeconds: new(int64(1)), // with 0 the object would be deleted at once
		Containers: []corev1.Container{{Name: "probe", Image: cluster.ProbeImage, Command: []string{"/probe", "serve"}}},
	}}
	return createReadyPod(t, pod)
}
