// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
)

// setOutOfService kills a node's kubelet and gives the node the out-of-service taint, while the guest's
// container keeps running. Then two machines may run (docs/adr/0038), which the oracle is told to permit.
func (g *guest) setOutOfService(t *testing.T, before *corev1.Pod, node *cluster.Node) (endException func() bool) {
	t.Helper()
	assert.NoError(t, node.KillKubelet())
	g.waitLost(t, node)
	endException = g.oracle.except(before.UID)
	assert.NoError(t, node.Taint(t.Context(), cluster.OutOfService))
	return endException
}

// waitEnded waits until the container of a pod has ended, regardless of the pod's status.
func (g *guest) waitEnded(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	assert.Eventually(t, "the container of "+string(pod.UID)+" has ended", func(testing.TB) error {
		return assert.ErrorUnless(!runningMachines()[pod.Name][pod.UID], "the container still runs")
	})
}

// testRunningOutOfService wrongly taints a node as out of service while the guest's machine runs there.
// The next machine is created on another node, and cannot lock the disk until the kubelet returns and
// ends the first machine.
func testRunningOutOfService(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	endException := g.setOutOfService(t, before, node)
	var end string
	assert.Eventually(t, "the next machine does not start", func(t testing.TB) error {
		end = g.claim(t).Annotations[objects.AnnotationEnd]
		return assert.ErrorUnless(!strings.Contains(end, string(before.UID)) && strings.Contains(end, driver.ExitNotStarted) && strings.Contains(end, "lock"),
			"the last end is %s", end)
	})
	t.Logf("the next machine has ended: %s", end)
	g.checkAnswers(t, before)
	g.noteRounds(t)
	assert.NoError(t, node.StartKubelet())
	g.waitEnded(t, before)
	assert.True(t, endException(), "no other machine was seen beside the first")
	waitForNode(t, node, true)
	g.waitFor(t, users.CheckApplied)
	g.waitElsewhere(t, before)
	assert.NoError(t, node.Untaint(t.Context(), cluster.OutOfService.Key))
}

// testRunningOutOfServiceThere is testRunningOutOfService for a guest whose disk is on the node: the next
// pod waits until the node is schedulable again.
func testRunningOutOfServiceThere(t *testing.T, g *guest) {
	before, node := g.pod(t), g.node(t)
	endException := g.setOutOfService(t, before, node)
	g.waitFor(t, framework.HasMessage("the pod is not scheduled: 0/3 nodes are available"))
	g.checkAnswers(t, before)
	assert.NoError(t, errors.Join(node.StartKubelet(), node.Untaint(t.Context(), cluster.OutOfService.Key)))
	g.waitEnded(t, before)
	t.Logf("another machine was seen beside the first: %t", endException())
	waitForNode(t, node, true)
	g.waitFor(t, users.CheckApplied)
	g.waitRun(t, before.UID)
}
