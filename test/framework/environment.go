// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
)

// Environment is an API server and its clients. The environments of other packages embed it: testenv
// adds engines and a controller, lab adds replicas and faults, bench adds a report.
type Environment struct {
	*Cluster
	VMClient   versioned.Interface
	KubeClient kubernetes.Interface
}

// NewEnvironment starts an API server. The caller must Close it.
func NewEnvironment(opts ClusterOptions) (*Environment, error) {
	cluster, err := NewCluster(opts)
	if err != nil {
		return nil, err
	}
	env, err := OpenEnvironment(cluster)
	if err != nil {
		return nil, errors.Join(err, cluster.Close())
	}
	return env, nil
}

// OpenEnvironment returns an environment of an API server that is running.
func OpenEnvironment(cluster *Cluster) (env *Environment, err error) {
	env = &Environment{Cluster: cluster}
	if env.VMClient, err = versioned.NewForConfig(rest.CopyConfig(cluster.Config)); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(cluster.Config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	env.KubeClient, err = kubernetes.NewForConfig(config)
	return env, err
}

// ReadClusterID returns the cluster's id, as servers carry it.
func (env *Environment) ReadClusterID(ctx context.Context) (string, error) {
	system, err := env.KubeClient.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return string(system.UID), nil
}

// AddNamespace creates a namespace and returns its UID.
func (env *Environment) AddNamespace(ctx context.Context, name string) (uid string, err error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if ns, err = env.KubeClient.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	return string(ns.UID), nil
}

// ReadAPIMetrics reads the metrics of the API server.
func (env *Environment) ReadAPIMetrics(ctx context.Context) (Metrics, error) {
	return env.KubeClient.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
}

// VMs changes and deletes the VMs of a namespace as a user does.
type VMs struct{ typed.VirtualMachineInterface }

// VMsIn returns the VMs of a namespace.
func (env *Environment) VMsIn(ns string) VMs {
	return VMs{env.VMClient.CloudnativeV1alpha1().VirtualMachines(ns)}
}

// Change changes a VM and returns it as written. It tries again after a conflict.
func (v VMs) Change(ctx context.Context, name string, change func(*api.VirtualMachine)) (written *api.VirtualMachine, err error) {
	err = RetryOnConflict(func() error {
		vm, err := v.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(vm)
		written, err = v.Update(ctx, vm, metav1.UpdateOptions{})
		return err
	})
	return written, err
}

// Remove requests the deletion of a VM. It succeeds if the VM does not exist.
func (v VMs) Remove(ctx context.Context, name string) error {
	return client.IgnoreNotFound(v.Delete(ctx, name, metav1.DeleteOptions{}))
}
