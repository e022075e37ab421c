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

// Environment is an API server, and what else a benchmark needs.
type Environment struct {
	*framework.Cluster
	Kube   kubernetes.Interface
	Client versioned.Interface
	// Temp is a folder for what is measured.
	Temp string

	pids []int // of the API server
}

// NewEnvironment starts an API server whose data are on a disk, and creates namespaces.
func NewEnvironment(ctx context.Context, opts framework.ClusterOptions, namespaces ...string) (*Environment, error) {
	opts.Durable = true
	cluster, err := framework.NewCluster(opts)
	if err != nil {
		return nil, err
	}
	e, err := OpenEnvironment(ctx, cluster, namespaces...)
	if err != nil {
		return nil, errors.Join(err, cluster.Close())
	}
	e.pids = []int{cluster.PID()}
	return e, nil
}

// OpenEnvironment is the same with a cluster that runs.
func OpenEnvironment(ctx context.Context, cluster *framework.Cluster, namespaces ...string) (e *Environment, err error) {
	e = &Environment{Cluster: cluster}
	config := rest.CopyConfig(cluster.Config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if e.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if e.Client, err = versioned.NewForConfig(cluster.Config); err != nil {
		return nil, err
	}
	for _, name := range namespaces {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := e.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	e.Temp, err = os.MkdirTemp("", "drover-bench-")
	return e, err
}

// Close ends the API server.
func (e *Environment) Close() error { return errors.Join(e.Cluster.Close(), os.RemoveAll(e.Temp)) }

// StartController starts a controller, which is the only one, and waits until it is ready.
func (e *Environment) StartController(ctx context.Context, program string, env []string, args ...string) (*Controller, error) {
	c, err := StartController(ctx, program, env, append([]string{"--kubeconfig=" + e.Kubeconfig, "--leader-elect=false"}, args...)...)
	if err != nil {
		return nil, err
	}
	return c, c.waitUntilReady()
}

// AwaitQuiet waits until neither the API server nor the process has work left.
func (e *Environment) AwaitQuiet(ctx context.Context, c *Controller) error {
	return AwaitQuiet(ctx, append([]int{c.PID()}, e.pids...)...)
}

// APIMetrics returns the metrics of the API server.
func (e *Environment) APIMetrics(ctx context.Context) (framework.Metrics, error) {
	return e.Kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
}
