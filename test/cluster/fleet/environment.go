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
	"slices"

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
	// simulatedNode is the label and annotation of nodes that kwok simulates.
	simulatedNode = "kwok.x-k8s.io/node"
	simulated     = "fake"
	// vmsPerNode is the most VMs on a node.
	vmsPerNode = 10
	// parallel is how many requests a user sends at the same time.
	parallel = 32
	// kwokBinary is the program that simulates kubelets.
	kwokBinary = "bin/bench/kwok"
	// crds is the kustomization of the CRDs.
	crds = "config/crd"
)

//go:embed stages.yaml
var stages []byte

// The images are never pulled, because the simulated kubelets only report that they run.
const (
	machineImage = "drover.test/machine:1"
	guestImage   = "oci://drover.test/guest:1"
)

// fleet is a cluster with nodes that kwok simulates, and a controller.
type fleet struct {
	*bench.Environment
	controller *bench.Controller
}

func measureFleet(ctx context.Context, r *bench.Report) (err error) {
	c, err := cluster.New(ctx, cluster.Options{Nodes: 1, Simulated: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	e, err := bench.OpenEnvironment(ctx, &framework.Cluster{Config: c.Config, Kubeconfig: c.Kubeconfig}, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	f := &fleet{Environment: e}
	f.VMs.New, f.VMs.AtOnce = newVM, parallel
	if err := applyCRDs(ctx, c.Kubeconfig); err != nil {
		return err
	}
	kwok, err := f.startKwok()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kwok.Kill()) }()
	if err := f.addNodes(ctx, (slices.Max(r.Sizes)+vmsPerNode-1)/vmsPerNode); err != nil {
		return fmt.Errorf("%w; kwok has printed %s", err, kwok.Output())
	}
	return f.WithController(ctx, func(c *bench.Controller) error {
		f.controller = c
		return f.measureRounds(ctx)
	}, "--vm-driver=pod", "--pod-machine-image="+machineImage, "--metrics-bind-address=0")
}

func applyCRDs(ctx context.Context, kubeconfig string) error {
	drover, err := framework.DroverBinary()
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, drover, "kubectl", "--kubeconfig", kubeconfig, "apply", "--server-side", "-k", crds).CombinedOutput()
	if err != nil {
		return fmt.Errorf("apply the CRDs: %w\n%s", err, out)
	}
	return nil
}

// startKwok starts the program that simulates kubelets.
func (f *fleet) startKwok() (*framework.Process, error) {
	config := filepath.Join(f.Temp, "stages.yaml")
	if err := os.WriteFile(config, stages, 0o600); err != nil {
		return nil, err
	}
	return framework.StartProcess(kwokBinary, []string{
		"--kubeconfig=" + f.Kubeconfig, "--config=" + config,
		"--manage-nodes-with-annotation-selector=" + simulatedNode + "=" + simulated,
		// Loopback addresses for pods: the controller connects to each to sample usage.
		"--cidr=127.128.0.0/9",
		// With the default, the Lease renewals of 1,000 nodes would be a third of all requests.
		"--node-lease-duration-seconds=400",
	}, nil)
}

// addNodes adds the nodes that kwok simulates, and waits until they are ready.
func (f *fleet) addNodes(ctx context.Context, count int) error {
	took, err := bench.WaitForAll(ctx, f.watched("nodes", metav1.NamespaceAll), count, func(_ watch.EventType, node *corev1.Node) bool {
		return node.Labels[simulatedNode] != "" && cluster.IsReady(node)
	}, func(ctx context.Context) error {
		return bench.ForEach(ctx, count, parallel, func(ctx context.Context, n int) error {
			_, err := f.KubeClient.CoreV1().Nodes().Create(ctx, newNode(n), metav1.CreateOptions{})
			return err
		})
	})
	bench.Logf("%d nodes are ready after %s", count, took)
	return err
}

// watched returns a ListWatch of Kubernetes objects.
func (f *fleet) watched(resource, namespace string) *cache.ListWatch {
	return cache.NewListWatchFromClient(f.KubeClient.CoreV1().RESTClient(), resource, namespace, fields.Everything())
}

// newNode returns a node with resources for a hundred pods.
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

// newVM returns a VM without a persistent disk.
func newVM(name string) *api.VirtualMachine {
	return framework.NewVM(name).Namespace(bench.Namespace).Driver("pod").Image(guestImage).
		Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "128Mi").Spec(func(spec *api.VirtualMachineSpec) {
		spec.Ephemeral = true
		spec.NodeSelector = map[string]string{simulatedNode: simulated}
	}).Obj()
}

// newPod returns a pod of the same size as a VM's pod.
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
