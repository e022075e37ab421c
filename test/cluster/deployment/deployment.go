// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/framework/users"
)

const (
	namespace = "drover-system"
	leaseName = "drover-controller"
	replicas  = 3
	// userNamespace has the VMs of users.
	userNamespace = metav1.NamespaceDefault
	engineSecret  = "drover-engine-tls" //nolint:gosec // its name
)

// The tags of two images of the same program, which every node has.
const (
	imageDev   = "dev"
	imageOther = "other"
)

// Deployment is a cluster with Drover, installed as the docs describe.
type Deployment struct {
	Cluster  *cluster.Cluster
	Engine   *Engine
	Recorder *Recorder
	Kube     kubernetes.Interface
	VMs      versioned.Interface

	t          testing.TB
	requests   *users.Log
	root       string // the root of the checkout
	image      string // the tag of Drover's image
	probeCount int
}

// New starts a cluster of three nodes and an engine, without Drover.
func New(t testing.TB) *Deployment {
	t.Helper()
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	c := cluster.Start(t, cluster.Options{Nodes: replicas, Images: []string{buildImage(t, imageDev), buildImage(t, imageOther)}})
	d := &Deployment{
		Cluster: c, Engine: StartEngine(t, c),
		Kube: kubernetes.NewForConfigOrDie(c.Config), VMs: versioned.NewForConfigOrDie(c.Config),
		t: t, requests: &users.Log{}, root: root, image: imageDev,
	}
	assert.NoError(t, framework.ImportGuests(t.Context(), d.Engine.Client))
	d.Recorder = StartRecorder(t, d.Engine)
	return d
}

// Start starts a cluster and an engine, and installs Drover with the chart.
func Start(t testing.TB, args ...string) *Deployment {
	t.Helper()
	d := New(t)
	d.CreateNamespace(t)
	assert.NoError(t, d.install(args...))
	return d
}

// CreateNamespace creates Drover's namespace, with the Secret of the engine's client.
func (d *Deployment) CreateNamespace(t testing.TB) {
	t.Helper()
	restricted := map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: restricted}}
	_, err := d.Kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	assert.NoError(t, err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: engineSecret}, Data: map[string][]byte{}}
	for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
		content, err := os.ReadFile(filepath.Join(d.Engine.Certificates, name))
		assert.NoError(t, err)
		secret.Data[name] = content
	}
	_, err = d.Kube.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	assert.NoError(t, err)
}

func (d *Deployment) install(args ...string) error { return d.installChart(d.chart(), args...) }

func (d *Deployment) installChart(chart string, args ...string) error {
	return d.helm(append([]string{
		"install", "drover", chart, "--wait", "--timeout", stepTimeout.String(),
		"--set", "image.tag=" + d.image + ",image.pullPolicy=Never",
		"--set", "docker.host=" + d.Engine.URL + ",docker.tlsSecret=" + engineSecret,
		"--set", "extraArgs={--docker-image=" + framework.GuestPlain + "}",
	}, args...)...)
}

func (d *Deployment) chart() string { return filepath.Join(d.root, "charts", "drover") }

// upgrade changes values of the Helm release.
func (d *Deployment) upgrade(args ...string) error {
	return d.helm(append([]string{"upgrade", "drover", d.chart(), "--reset-then-reuse-values"}, args...)...)
}

// WaitUntilSteady waits until all replicas are ready, and returns the holder of the Lease.
func (d *Deployment) WaitUntilSteady(ctx context.Context) (holder string, err error) {
	err = assert.Poll(ctx, "all replicas are ready", func() (err error) {
		holder, err = d.findHolder(ctx)
		return err
	})
	return holder, err
}

func (d *Deployment) findHolder(ctx context.Context) (string, error) {
	deployment, err := d.Kube.AppsV1().Deployments(namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if s := deployment.Status; s.ObservedGeneration != deployment.Generation || s.ReadyReplicas != replicas || s.UpdatedReplicas != replicas || s.Replicas != replicas {
		return "", fmt.Errorf("%d of %d replicas are ready, %d of them updated", s.ReadyReplicas, s.Replicas, s.UpdatedReplicas)
	}
	lease, err := d.Kube.CoordinationV1().Leases(namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	holder := holderOf(lease)
	if holder == "" {
		return "", errors.New("no replica leads")
	}
	// The Lease may still name a pod that is gone.
	pod, err := d.Kube.CoreV1().Pods(namespace).Get(ctx, podOf(holder), metav1.GetOptions{})
	if err == nil && pod.DeletionTimestamp != nil {
		err = fmt.Errorf("leader %s is being deleted", pod.Name)
	}
	return holder, err
}

// pods returns the pods of the Drover release.
func (d *Deployment) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := d.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// nodeOf returns the node of a pod of Drover.
func (d *Deployment) nodeOf(ctx context.Context, pod string) (*cluster.Node, error) {
	p, err := d.Kube.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return d.Cluster.NodeByName(p.Spec.NodeName)
}

// newUser returns a user of the VM with a name.
func (d *Deployment) newUser(name string, seed uint64) *users.User {
	return &users.User{
		VMs: d.VMs.CloudnativeV1alpha1().VirtualMachines(userNamespace), Log: d.requests,
		Random: users.NewRandom(seed, 1), Name: name,
	}
}

// newProbe returns a user of a new VM, which shows whether Drover works.
func (d *Deployment) newProbe() *users.User {
	d.probeCount++
	return d.newUser(fmt.Sprintf("probe-%d", d.probeCount), 0)
}

// KeepBusy lets users create, change and delete VMs until stop is called, which waits until
// their requests are complete.
func (d *Deployment) KeepBusy(t testing.TB, count uint64) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	var group sync.WaitGroup
	for n := range count {
		group.Go(func() {
			if err := d.newUser(fmt.Sprintf("vm-%d", n), n).Run(ctx, done); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
		})
	}
	return func() {
		close(done)
		timer := time.AfterFunc(handoverTimeout, func() { cancel(fmt.Errorf("not within %s after the last fault", handoverTimeout)) })
		group.Wait()
		timer.Stop()
	}
}

// Judge fails the test with the rules that were broken.
func (d *Deployment) Judge(t testing.TB) {
	t.Helper()
	e := rules.Evidence{Requested: d.requests.Requested(), VMs: map[types.UID]*api.VirtualMachine{}}
	recorded, err := d.Recorder.Events()
	assert.NoError(t, err)
	list, err := d.VMs.CloudnativeV1alpha1().VirtualMachines("").List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	for n := range list.Items {
		e.VMs[list.Items[n].UID] = &list.Items[n]
	}
	containers, err := d.Engine.Client.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	assert.NoError(t, err)
	addContainers(&e, recorded, containers.Items)
	for _, v := range rules.Judge(e) {
		t.Error(v)
	}
	t.Logf("%d VMs, %d events of containers", len(e.Requested), len(recorded))
}

// helm runs Helm on the release.
func (d *Deployment) helm(args ...string) error {
	stdout, stderr, err := framework.TryHelm(d.t, d.Cluster.Kubeconfig, append(args, "--namespace", namespace)...)
	if err != nil {
		return fmt.Errorf("helm %s: %w: %s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return nil
}
