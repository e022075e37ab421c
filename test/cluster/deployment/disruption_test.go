// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/kubectl/pkg/util/podutils"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/tier"
)

// TestDisruption drains the nodes in turn, and then forces replicas that cannot run. Meanwhile users
// create, change and delete VMs.
func TestDisruption(t *testing.T) {
	tier.Full(t, "it starts a cluster of nodes; test/failover has replicas without nodes")
	t.Parallel()
	d := Start(t)
	settle := d.KeepBusy(t, busyUsers)
	d.checkDrains(t)
	d.checkUnschedulable(t)
	d.checkAbsentImage(t)
	settle()
	d.Judge(t)
}

// checkDrains drains each node. The PodDisruptionBudget keeps two replicas ready.
func (d *Deployment) checkDrains(t *testing.T) {
	t.Helper()
	ready := d.countReadyReplicas(t)
	for _, node := range d.Cluster.Nodes() {
		d.within(t, "drain of "+node.Name, node.Drain)
		d.checkManaged(t)
		assert.NoError(t, node.Uncordon(t.Context()))
	}
	d.waitUntilImage(t, imageDev)
	least := ready()
	assert.True(t, least >= replicas-1, "during the drains only %d replicas were ready", least)
}

// countReadyReplicas counts the pods that are ready and not being deleted, until the returned
// function is called, which returns the least number.
func (d *Deployment) countReadyReplicas(t *testing.T) (least func() int) {
	t.Helper()
	pods, err := d.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	ready := map[types.UID]bool{}
	for _, pod := range pods.Items {
		ready[pod.UID] = isReady(&pod)
	}
	watcher, err := d.Kube.CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{ResourceVersion: pods.ResourceVersion})
	assert.NoError(t, err)
	counted := make(chan int, 1)
	go func() { counted <- followReadyReplicas(watcher.ResultChan(), ready) }()
	return func() int {
		watcher.Stop()
		return <-counted
	}
}

func followReadyReplicas(events <-chan watch.Event, ready map[types.UID]bool) (least int) {
	least = replicas
	for event := range events {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			continue
		}
		ready[pod.UID] = event.Type != watch.Deleted && isReady(pod)
		count := 0
		for _, isReady := range ready {
			if isReady {
				count++
			}
		}
		least = min(least, count)
	}
	return least
}

func isReady(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && podutils.IsPodReady(pod) }

// checkUnschedulable deletes a standby while all nodes are cordoned. The other replicas continue.
func (d *Deployment) checkUnschedulable(t *testing.T) {
	t.Helper()
	for _, node := range d.Cluster.Nodes() {
		assert.NoError(t, node.Cordon(t.Context()))
	}
	standby, err := d.findStandby(t.Context())
	assert.NoError(t, err)
	assert.NoError(t, d.Kube.CoreV1().Pods(namespace).Delete(t.Context(), standby, metav1.DeleteOptions{}))
	d.waitForPod(t, "a replica that cannot be scheduled", func(pod corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		})
	})
	d.checkManaged(t)
	for _, node := range d.Cluster.Nodes() {
		assert.NoError(t, node.Uncordon(t.Context()))
	}
	d.waitUntilImage(t, imageDev)
}

// findStandby returns a pod that is not the leader.
func (d *Deployment) findStandby(ctx context.Context) (string, error) {
	holder, err := d.findHolder(ctx)
	if err != nil {
		return "", err
	}
	pods, err := d.pods(ctx)
	for _, pod := range pods {
		if pod.Name != podOf(holder) && isReady(&pod) {
			return pod.Name, nil
		}
	}
	return "", errors.Join(errors.New("there is no standby"), err)
}

// checkAbsentImage upgrades to an image that does not exist, and back. The old replicas continue.
func (d *Deployment) checkAbsentImage(t *testing.T) {
	t.Helper()
	assert.NoError(t, d.upgrade("--set", "image.tag=absent,image.pullPolicy=IfNotPresent"))
	d.waitForPod(t, "a replica without an image", func(pod corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			w := c.State.Waiting
			return w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff")
		})
	})
	d.checkManaged(t)
	pods, err := d.pods(t.Context())
	assert.NoError(t, err)
	pods = slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return !isReady(&pod) })
	assert.True(t, len(pods) == replicas, "beside a replica without an image %d replicas are ready", len(pods))
	assert.NoError(t, d.helm("rollback", "drover", "--wait", "--timeout", "2m"))
	d.waitUntilImage(t, imageDev)
}

func (d *Deployment) waitForPod(t *testing.T, what string, is func(corev1.Pod) bool) {
	t.Helper()
	assert.Eventually(t, what, func(t testing.TB) error {
		pods, err := d.pods(t.Context())
		if err == nil && !slices.ContainsFunc(pods, is) {
			err = fmt.Errorf("none of %d pods is that", len(pods))
		}
		return err
	})
}
