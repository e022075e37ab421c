// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
)

// killController ends the controller as a crash does.
func (c *podController) killController(t *testing.T) {
	t.Helper()
	assert.NoError(t, c.controller.Kill())
}

// moment reports whether a watch of the successive pods of a guest has reached a moment.
type moment func(before types.UID, now *corev1.Pod) bool

func isDeleted(before types.UID, now *corev1.Pod) bool {
	return now.UID == before && now.DeletionTimestamp != nil
}

func hasEnded(before types.UID, now *corev1.Pod) bool {
	s := now.Status.ContainerStatuses
	return now.UID == before && len(s) == 1 && s[0].State.Terminated != nil
}

func isNext(before types.UID, now *corev1.Pod) bool { return now.UID != before }

// disruption follows the pods of a guest from one run to the next.
type disruption struct {
	*guest

	before *corev1.Pod
	node   *cluster.Node
	pods   watch.Interface
}

// watchSeconds is the timeout of a watch, for a disruption that never ends.
const watchSeconds = int64(1200)

func (g *guest) followDisruption(t *testing.T) *disruption {
	t.Helper()
	pods, err := shared.Client.CoreV1().Pods(g.namespace).Watch(t.Context(), metav1.ListOptions{LabelSelector: "cloudnative.tw/name=" + g.name, TimeoutSeconds: new(watchSeconds)})
	assert.NoError(t, err)
	t.Cleanup(pods.Stop)
	return &disruption{g, g.pod(t), g.node(t), pods}
}

// await waits for a moment by a watch, and so without delay.
func (d *disruption) await(t *testing.T, name string, reached moment) {
	t.Helper()
	for event := range d.pods.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && reached(d.before.UID, pod) {
			return
		}
	}
	t.Fatalf("the watch has ended before the pod of %s is %s", d.name, name)
}

// drainKills are moments of a drain at which the controller is killed, and at which it is started again.
var drainKills = []struct {
	name        string
	kill, start moment // nil means at once
}{
	{"before it begins", nil, hasEnded},
	{"ended", hasEnded, nil},
	{"deleted", isDeleted, nil},
	{"made again", isNext, nil},
}

// testControllerKilledInDrain kills the controller at several moments of a drain. There are fewer moments for a
// guest without a claim, as the claim would record its end.
func testControllerKilledInDrain(t *testing.T, g *guest) {
	kills := drainKills
	if g.disk == "" {
		kills = kills[2:]
	}
	for _, c := range kills {
		d := g.followDisruption(t)
		drained := make(chan error, 1)
		if c.kill == nil {
			g.killController(t)
		}
		go func() { drained <- d.node.Drain(t.Context()) }()
		if c.kill != nil {
			d.await(t, c.name, c.kill)
			g.killController(t)
		}
		if c.start != nil {
			d.await(t, "at the moment of the start", c.start)
		}
		g.startController(t)
		err := <-drained
		assert.Require(t, err == nil, "killed when the pod was %s: %v", c.name, err)
		g.waitElsewhere(t, d.before)
		assert.NoError(t, d.node.Uncordon(t.Context()))
	}
}

// testControllerKilledInLoss kills the controller at each step of a node loss: before it is noticed, before
// an operator asserts it, before the next pod runs, and before the node is back.
func testControllerKilledInLoss(t *testing.T, g *guest) {
	d := g.followDisruption(t)
	assert.NoError(t, d.node.PowerOff())
	g.killController(t)
	waitForNode(t, d.node, false)
	g.startController(t)
	g.waitLost(t, d.node)
	g.killController(t)
	assert.NoError(t, d.node.Taint(t.Context(), cluster.OutOfService))
	d.await(t, "deleted", isDeleted)
	g.startController(t)
	d.await(t, "made again", isNext)
	g.killController(t)
	g.startController(t)
	g.waitElsewhere(t, d.before)
	next := g.pod(t)
	g.killController(t)
	assert.NoError(t, errors.Join(d.node.Untaint(t.Context(), cluster.OutOfService.Key), d.node.PowerOn()))
	waitForNode(t, d.node, true)
	g.startController(t)
	g.checkUndisturbed(t, next)
}

// testControllerKilledUntilReturn kills the controller after it has reported a loss, until the node is back
// and its kubelet has reported the end of the guest.
func testControllerKilledUntilReturn(t *testing.T, g *guest) {
	d := g.followDisruption(t)
	assert.NoError(t, d.node.PowerOff())
	g.waitLost(t, d.node)
	g.killController(t)
	assert.NoError(t, d.node.PowerOn())
	d.await(t, "ended", hasEnded)
	g.startController(t)
	g.waitRun(t, d.before.UID)
}
