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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/client/clientset/versioned"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/informers/externalversions"
	listers "cloudnative.tw/drover/client/listers/cloudnative/v1alpha1"
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
	// stepTimeout bounds each step, on a slow and busy machine.
	stepTimeout = 30 * time.Minute
	pollPeriod  = 200 * time.Millisecond
	// settlePause is how long memory is left alone before it is measured.
	settlePause = 10 * time.Second
)

//go:embed stages.yaml
var stages []byte

// environment is a cluster with nodes that kwok simulates, and a controller.
type environment struct {
	*options
	cluster *cluster.Cluster
	kube    kubernetes.Interface
	vms     typed.VirtualMachineInterface
	// allVMs and allPods are known by watches: to list 10,000 of them again and again would slow the API server
	// down, and with it what is measured.
	allVMs     listers.VirtualMachineLister
	allPods    corelisters.PodLister
	controller *bench.Controller
	processes  []*framework.Process
	dir        string
}

func start(ctx context.Context, o *options) (*environment, error) {
	e := &environment{options: o}
	if err := e.start(ctx); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func (e *environment) start(ctx context.Context) (err error) {
	if e.dir, err = os.MkdirTemp("", "drover-fleet-"); err != nil {
		return err
	}
	if e.cluster, err = cluster.New(ctx, cluster.Options{Nodes: 1, Simulated: true}); err != nil {
		return err
	}
	config := rest.CopyConfig(e.cluster.Config)
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	if e.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	vms, err := versioned.NewForConfig(e.cluster.Config)
	if err != nil {
		return err
	}
	e.vms = vms.CloudnativeV1alpha1().VirtualMachines(namespace)
	if err := e.applyCRDs(ctx); err != nil {
		return err
	}
	if err := bench.CreateNamespace(ctx, e.kube, namespace); err != nil {
		return err
	}
	if err := e.addNodes(ctx); err != nil {
		return err
	}
	if err := e.watchObjects(ctx, vms); err != nil {
		return err
	}
	e.controller, err = bench.StartController(ctx, e.Controller, nil, "--kubeconfig="+e.cluster.Kubeconfig, "--vm-driver=pod",
		"--pod-machine-image="+machineImage, "--leader-elect=false", "--metrics-bind-address=0", "--pprof-bind-address="+e.Pprof)
	if err != nil {
		return err
	}
	e.processes = append(e.processes, e.controller.Process)
	return waitUntil(ctx, "the controller is ready", func(context.Context) error { return e.controller.Ready() })
}

// watchObjects fills the caches of VMs and pods, and keeps them up to date.
func (e *environment) watchObjects(ctx context.Context, vms versioned.Interface) error {
	ofVMs := externalversions.NewSharedInformerFactoryWithOptions(vms, 0, externalversions.WithNamespace(namespace))
	ofPods := informers.NewSharedInformerFactoryWithOptions(e.kube, 0, informers.WithNamespace(namespace))
	e.allVMs, e.allPods = ofVMs.Cloudnative().V1alpha1().VirtualMachines().Lister(), ofPods.Core().V1().Pods().Lister()
	return fillCaches(ctx, ofVMs, ofPods)
}

func (e *environment) applyCRDs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	args := []string{"kubectl", "--kubeconfig", e.cluster.Kubeconfig, "apply", "--server-side", "-k", e.CRDs}
	if out, err := exec.CommandContext(ctx, e.Drover, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("apply the CRDs: %w\n%s", err, out)
	}
	return nil
}

// addNodes starts kwok and adds the nodes that it simulates.
func (e *environment) addNodes(ctx context.Context) error {
	config := filepath.Join(e.dir, "stages.yaml")
	if err := os.WriteFile(config, stages, 0o600); err != nil {
		return err
	}
	kwok, err := framework.StartProcess(e.Kwok, []string{
		"--kubeconfig=" + e.cluster.Kubeconfig, "--config=" + config,
		"--manage-nodes-with-annotation-selector=" + simulatedNode + "=" + simulated,
		// Loopback addresses for pods: the controller connects to each to sample usage.
		"--cidr=127.128.0.0/9",
		// By default, the Lease renewals of 1,000 nodes are a third of all requests.
		"--node-lease-duration-seconds=400",
	}, nil)
	if err != nil {
		return err
	}
	e.processes = append(e.processes, kwok)
	nodes := e.kube.CoreV1().Nodes()
	err = bench.ForEach(ctx, e.Nodes, parallel, func(ctx context.Context, n int) error {
		_, err := nodes.Create(ctx, newNode(n), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return waitUntil(ctx, "all nodes are ready", func(ctx context.Context) error {
		list, err := nodes.List(ctx, metav1.ListOptions{LabelSelector: simulatedNode})
		if err != nil {
			return err
		}
		ready := 0
		for n := range list.Items {
			if isReady(&list.Items[n]) {
				ready++
			}
		}
		if ready < e.Nodes {
			return fmt.Errorf("%d are; kwok has printed %s", ready, kwok.Output())
		}
		return nil
	})
}

func isReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// newNode is a node with room for a hundred pods.
func newNode(n int) *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("256"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("simulated-%04d", n), Labels: map[string]string{simulatedNode: simulated}, Annotations: map[string]string{simulatedNode: simulated},
		},
		Status: corev1.NodeStatus{Allocatable: room, Capacity: room},
	}
}

// close ends all that was started.
func (e *environment) close() error {
	var errs []error
	for _, p := range e.processes {
		errs = append(errs, p.Kill())
	}
	if e.cluster != nil {
		errs = append(errs, e.cluster.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(e.dir))...)
}
