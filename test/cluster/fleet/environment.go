// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
)

const (
	namespace = "fleet"
	// simulatedNode is the label and annotation of nodes that kwok simulates.
	simulatedNode = "kwok.x-k8s.io/node"
	simulated     = "fake"
	// parallel is how many requests a user sends at the same time.
	parallel = 32
)

//go:embed stages.yaml
var stages []byte

// The images are never fetched: no kubelet does more than to say that they run.
const (
	machineImage = "drover.test/machine:1"
	guestImage   = "oci://drover.test/guest:1"
)

// fleet is a cluster with nodes that kwok simulates, and a controller.
type fleet struct {
	*options
	*bench.Environment
	vms        *bench.VMs
	controller *bench.Controller
	report     *bench.Report
}

// Run implements bench.Benchmark.
func (o *options) Run(ctx context.Context) (err error) {
	c, err := cluster.New(ctx, cluster.Options{Nodes: 1, Simulated: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	e, err := bench.OpenEnvironment(ctx, &framework.Cluster{Config: c.Config, Kubeconfig: c.Kubeconfig}, namespace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	f := &fleet{options: o, Environment: e, vms: e.VMsIn(namespace, parallel), report: bench.NewReport(o)}
	f.vms.New = newVM
	args := []string{"kubectl", "--kubeconfig", c.Kubeconfig, "apply", "--server-side", "-k", o.CRDs}
	if out, err := exec.CommandContext(ctx, o.Drover, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("apply the CRDs: %w\n%s", err, out)
	}
	kwok, err := f.startKwok()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kwok.Kill()) }()
	if err := f.addNodes(ctx); err != nil {
		return fmt.Errorf("%w; kwok has printed %s", err, kwok.Output())
	}
	f.controller, err = e.StartController(ctx, o.Controller, nil, append([]string{
		"--vm-driver=pod", "--pod-machine-image=" + machineImage, "--metrics-bind-address=0",
	}, o.Flags...)...)
	if err != nil {
		return err
	}
	if err := f.controller.StopWith(f.measureRounds(ctx)); err != nil {
		return err
	}
	return f.report.Finish(o.JSON)
}

// startKwok starts the program that simulates kubelets.
func (f *fleet) startKwok() (*framework.Process, error) {
	config := filepath.Join(f.Temp, "stages.yaml")
	if err := os.WriteFile(config, stages, 0o600); err != nil {
		return nil, err
	}
	return framework.StartProcess(f.Kwok, []string{
		"--kubeconfig=" + f.Kubeconfig, "--config=" + config,
		"--manage-nodes-with-annotation-selector=" + simulatedNode + "=" + simulated,
		// Loopback addresses for pods: the controller connects to each to sample usage.
		"--cidr=127.128.0.0/9",
		// By default, the Lease renewals of 1,000 nodes are a third of all requests.
		"--node-lease-duration-seconds=400",
	}, nil)
}

// addNodes adds the nodes that kwok simulates, and waits until they are ready.
func (f *fleet) addNodes(ctx context.Context) error {
	took, err := bench.WaitForAll(ctx, f.watched("nodes", metav1.NamespaceAll), f.Nodes, func(_ watch.EventType, node *corev1.Node) bool {
		return node.Labels[simulatedNode] != "" && cluster.IsReady(node)
	}, func(ctx context.Context) error {
		return bench.ForEach(ctx, f.Nodes, parallel, func(ctx context.Context, n int) error {
			_, err := f.Kube.CoreV1().Nodes().Create(ctx, newNode(n), metav1.CreateOptions{})
			return err
		})
	})
	bench.Logf("%d nodes are ready after %s", f.Nodes, took)
	return err
}

// watched lists and watches objects of Kubernetes.
func (f *fleet) watched(resource, namespace string) *cache.ListWatch {
	return cache.NewListWatchFromClient(f.Kube.CoreV1().RESTClient(), resource, namespace, fields.Everything())
}

// newNode is a node with room for a hundred pods.
func newNode(n int) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("256"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	mark := map[string]string{simulatedNode: simulated}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("simulated-%04d", n), Labels: mark, Annotations: mark},
		Status:     corev1.NodeStatus{Allocatable: room, Capacity: room},
	}
}

// newVM is a VM without a disk that lasts.
func newVM(name string) *api.VirtualMachine {
	return framework.NewVM(name).Namespace(namespace).Driver("pod").Image(guestImage).
		Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "128Mi").Spec(func(spec *api.VirtualMachineSpec) {
		spec.Ephemeral = true
		spec.NodeSelector = map[string]string{simulatedNode: simulated}
	}).Obj()
}

// newPod has the size of a VM's pod.
func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{simulatedNode: simulated},
			Containers: []corev1.Container{{
				Name: "machine", Image: machineImage,
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("320Mi"),
				}},
			}},
		},
	}
}
