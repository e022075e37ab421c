// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/test/framework"
)

// Namespaces of the VMs.
const (
	Namespace     = "bench"
	idleNamespace = "idle"
)

// Environment is an API server with VMs, and the report of what is measured there.
type Environment struct {
	*framework.Cluster
	*Report
	Kube   kubernetes.Interface
	Client versioned.Interface
	// VMs are measured, and Idle are others that are there meanwhile.
	VMs, Idle *VMs
	// Temp is a folder for what is measured.
	Temp string

	pids []int // of the API server
}

// In returns the measurement of a suite beside an API server of its own, whose data are on a disk.
func In(opts framework.ClusterOptions, measure func(context.Context, *Environment) error) func(context.Context, *Report) error {
	opts.Durable = true
	return func(ctx context.Context, r *Report) (err error) {
		cluster, err := framework.NewCluster(opts)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cluster.Close()) }()
		e, err := OpenEnvironment(ctx, cluster, r)
		if err != nil {
			return err
		}
		e.pids = []int{cluster.PID()}
		measuring, cancel := context.WithCancel(ctx)
		defer cancel() // the watches, before what they watch
		return errors.Join(measure(measuring, e), e.Close())
	}
}

// OpenEnvironment uses a cluster that runs.
func OpenEnvironment(ctx context.Context, cluster *framework.Cluster, r *Report) (e *Environment, err error) {
	e = &Environment{Cluster: cluster, Report: r}
	config := rest.CopyConfig(cluster.Config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if e.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if e.Client, err = versioned.NewForConfig(cluster.Config); err != nil {
		return nil, err
	}
	e.VMs, e.Idle = e.vmsIn(Namespace), e.vmsIn(idleNamespace)
	for _, name := range []string{Namespace, idleNamespace} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := e.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	e.Temp, err = os.MkdirTemp("", "drover-bench-")
	return e, err
}

// Close removes what is not of the cluster.
func (e *Environment) Close() error { return os.RemoveAll(e.Temp) }

// AwaitQuiet waits until neither the API server nor the process has work left.
func (e *Environment) AwaitQuiet(ctx context.Context, c *Controller) error {
	return AwaitQuiet(ctx, append([]int{c.PID()}, e.pids...)...)
}

// APIMetrics returns the metrics of the API server.
func (e *Environment) APIMetrics(ctx context.Context) (framework.Metrics, error) {
	return e.Kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
}
