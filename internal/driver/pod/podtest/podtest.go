// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podtest has the engine that the contract tests of driver pod share. Their pods are run by a simulated kubelet in
// package pod, and by real kubelets in module test/cluster.
//
// Start with Engine, whose Harness the test completes. records.go does what the controller does.
package podtest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// lossTimeout limits a call to an API server that is unreachable at times. An unreachable one refuses
// connections at once, so this has to be enough for the calls that a slow and busy host answers.
const lossTimeout = 10 * time.Second

// Engine is a cluster whose servers exist without VirtualMachines. It creates the namespaces of servers, and
// keeps the record of their objects.
type Engine struct {
	// Cluster is the cluster with the pods.
	Cluster *framework.Cluster
	Kube    kubernetes.Interface
	// Open opens a driver of a cluster id with a connection to the cluster. The given time limits calls
	// without a deadline; 0 means the default.
	Open func(t *testing.T, config *rest.Config, id string, within time.Duration) driver.Driver
	// Kill ends the machine of a pod.
	Kill func(t *testing.T, p *corev1.Pod)

	mu         sync.Mutex
	namespaces map[string]bool
	records    map[string]record
}

// Harness returns a harness without images, the guest, most of OutOfBand, and a time limit, which the test
// sets. All servers have the given spec, but outlive their VirtualMachines: the cluster would collect pods
// whose VirtualMachine it does not have.
func (e *Engine) Harness(spec driver.ServerSpec) drivertest.Harness {
	spec.RetainOnDelete = true
	skips := map[string]string{
		"PausedByHand":         "no event tells of it: TestPausedByOthers checks that samples do",
		"StartedByHand":        "a pod that has ended never starts again",
		"FenceOutlivesServers": "epochs are on objects, and none is left: the VirtualMachine's status says what is made",
		"FenceUnderLoad":       "an Ensure that finds nothing to change leaves no epoch",
	}
	for _, name := range []string{"Logs", "LogsPrevious"} {
		skips[name] = "the log of a run goes with its pod"
	}
	return drivertest.Harness{
		Open: func(t *testing.T, id string) driver.Driver {
			t.Helper()
			return e.recordObjects(e.Open(t, e.Cluster.Config, id, 0), id)
		},
		Spec:    func(*testing.T) driver.ServerSpec { return spec },
		Losable: e.losableOf, OutOfBand: drivertest.OutOfBand{Remove: e.remove}, Visible: e.visible,
		KeepsImage: true, FixedID: true, FencesPerServer: true, ResumesWatch: true, Skips: skips,
	}
}

// losableOf opens a driver whose connection to the API server can be cut.
func (e *Engine) losableOf(t *testing.T, id string) drivertest.Losable {
	t.Helper()
	proxy := e.Cluster.NewAPIProxy(t)
	config, err := clientcmd.BuildConfigFromFlags("", proxy.Kubeconfig)
	assert.NoError(t, err)
	config.QPS = -1
	return drivertest.Losable{Driver: e.recordObjects(e.Open(t, config, id, lossTimeout), id), Lose: proxy.Disconnect, Restore: proxy.Restore}
}

// PodOf returns the pod of a server.
func (e *Engine) PodOf(t *testing.T, s driver.Server) *corev1.Pod {
	t.Helper()
	p, err := e.findPod(t.Context(), s)
	assert.Require(t, err == nil && p != nil, "the pod of %s is not found: %v", s.ID, err)
	return p
}

// labelsOf returns options that list the objects of a server.
func labelsOf(s driver.Server) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: "cloudnative.tw/uid=" + string(s.UID)}
}

// findPod returns the pod of a server, nil if it has none.
func (e *Engine) findPod(ctx context.Context, s driver.Server) (*corev1.Pod, error) {
	pods, err := e.Kube.CoreV1().Pods(s.Namespace).List(ctx, labelsOf(s))
	if err != nil || len(pods.Items) == 0 {
		return nil, err
	}
	return &pods.Items[0], nil
}

// remove removes the objects of a server as a person would, its finalizer first.
func (e *Engine) remove(t *testing.T, s driver.Server) {
	ctx := context.WithoutCancel(t.Context())
	core := e.Kube.CoreV1()
	p, err := e.findPod(ctx, s)
	if err == nil && p != nil {
		e.Kill(t, p)
		_, err = core.Pods(s.Namespace).Patch(ctx, p.Name, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		err = errors.Join(ignoreNotFound(err), ignoreNotFound(core.Pods(s.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})))
	}
	claims, listErr := core.PersistentVolumeClaims(s.Namespace).List(ctx, labelsOf(s))
	err = errors.Join(err, listErr)
	for n := 0; listErr == nil && n < len(claims.Items); n++ {
		err = errors.Join(err, ignoreNotFound(core.PersistentVolumeClaims(s.Namespace).Delete(ctx, claims.Items[n].Name, metav1.DeleteOptions{})))
	}
	assert.ReportError(t, err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// visible returns what users without the right to read Secrets see of a server.
func (e *Engine) visible(t *testing.T, s driver.Server) string {
	t.Helper()
	claims, err := e.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).List(t.Context(), labelsOf(s))
	assert.Require(t, err == nil && len(claims.Items) != 0, "the claim of %s is not found: %v", s.ID, err)
	text, err := json.Marshal([]any{e.PodOf(t, s), claims.Items})
	assert.NoError(t, err)
	return string(text)
}
