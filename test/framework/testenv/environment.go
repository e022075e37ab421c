// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// cleanupTimeout bounds the cleanup after the tests.
const cleanupTimeout = time.Minute

// Environment is a cluster and the engines on which its VMs run.
type Environment struct {
	*framework.Environment
	// ClusterID is the cluster's id, which its servers have in a label or record.
	ClusterID string
	// FakeDir is the fake engine's folder.
	FakeDir string
	// Namespace is where CreateVM creates VMs that name no namespace.
	Namespace string
	// WriteDecision, if set, is called with the decisions of controllers in this process: see app.Options.
	WriteDecision func(line any)

	faults  string
	temp    string
	virtual framework.VirtualCluster
}

// CountWrites returns how many requests wrote VMs and events of this virtual cluster.
func (env *Environment) CountWrites() int { return virtual.CountWrites(env.virtual) }

// New starts a cluster without a controller. The caller must Close it.
func New() (*Environment, error) {
	return NewWith(framework.ClusterOptions{})
}

// NewWith starts a cluster with options. With opts.WithController it includes a controller, whose
// fake engine is not that in FakeDir. The caller must Close it.
func NewWith(opts framework.ClusterOptions) (*Environment, error) {
	server, err := framework.NewEnvironment(opts)
	if err != nil {
		return nil, err
	}
	return open(&Environment{Environment: server, Namespace: metav1.NamespaceDefault})
}

func open(env *Environment) (*Environment, error) {
	if err := env.prepareEngines(); err != nil {
		return nil, errors.Join(err, env.Close())
	}
	return env, nil
}

func (env *Environment) prepareEngines() (err error) {
	if env.ClusterID, err = env.ReadClusterID(context.Background()); err != nil {
		return err
	}
	if env.temp, err = os.MkdirTemp("", "drover-testenv-"); err != nil {
		return err
	}
	env.FakeDir = filepath.Join(env.temp, "fake")
	env.faults = filepath.Join(env.temp, "faults.yaml")
	return os.Mkdir(env.FakeDir, 0o700)
}

// Start is New for one test, at whose end it is closed.
func Start(t testing.TB) *Environment {
	t.Helper()
	env, err := New()
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, env.Close()) })
	return env
}

// virtual has the real cluster of all virtual clusters. It is started with the first of them.
var virtual struct {
	sync.Mutex
	*framework.VirtualClusters
	cluster *framework.Cluster
}

// StartVirtual is Start for a virtual cluster, which shares its API server with those of other tests.
func StartVirtual(t testing.TB) *Environment {
	t.Helper()
	assert.NoError(t, serveVirtual())
	cluster, of, err := virtual.New(t.Context())
	assert.NoError(t, err)
	server, err := framework.OpenEnvironment(cluster)
	assert.NoError(t, err)
	env, err := open(&Environment{Environment: server, Namespace: of.Namespace, virtual: of})
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, env.Close()) })
	return env
}

func serveVirtual() (err error) {
	virtual.Lock()
	defer virtual.Unlock()
	if virtual.VirtualClusters != nil {
		return nil
	}
	if virtual.cluster, err = framework.NewCluster(framework.ClusterOptions{}); err == nil {
		virtual.VirtualClusters, err = virtual.cluster.ServeVirtual()
	}
	return err
}

func closeVirtual() error {
	if virtual.VirtualClusters == nil {
		return nil
	}
	return errors.Join(virtual.Close(), virtual.cluster.Close())
}

// Close stops the cluster and removes what is left of it, including its containers.
func (env *Environment) Close() error {
	err := env.Cluster.Close()
	if env.ClusterID != "" {
		err = errors.Join(err, env.removeContainers())
	}
	return errors.Join(err, os.RemoveAll(env.temp))
}

func (env *Environment) removeContainers() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	c, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	all, err := c.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", docker.LabelCluster+"="+env.ClusterID),
	})
	if err != nil {
		return nil // without an engine there are no containers
	}
	for _, found := range all.Items {
		_, _ = c.ContainerRemove(ctx, found.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}
	return nil
}

// CreateNamespace creates a namespace for one test. It is deleted at the end of the test,
// which does not wait for it.
func (env *Environment) CreateNamespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}
	made, err := env.KubeClient.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	assert.NoError(t, err)
	env.DeleteNamespaceAtEnd(t, made.Name)
	return made.Name
}

// CreateNamedNamespace is CreateNamespace with a given name.
func (env *Environment) CreateNamedNamespace(t testing.TB, name string) {
	t.Helper()
	assert.NoError(t, assert.ErrorOf(env.AddNamespace(t.Context(), name)))
	env.DeleteNamespaceAtEnd(t, name)
}

// DeleteNamespaceAtEnd deletes a namespace when the test ends.
func (env *Environment) DeleteNamespaceAtEnd(t testing.TB, ns string) {
	t.Cleanup(func() {
		_ = env.KubeClient.CoreV1().Namespaces().Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
}

// SetFaults makes the fake engine fail from now on as the text describes (see package
// faultinject). An empty text ends all faults.
func (env *Environment) SetFaults(t testing.TB, text string) {
	t.Helper()
	next := env.faults + ".next"
	assert.NoError(t, errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, env.faults)))
}

// kubectlTimeout is longer than any --timeout that tests give to kubectl.
const kubectlTimeout = 5 * time.Minute

// RunKubectl runs kubectl with input, and returns what it printed.
func (env *Environment) RunKubectl(t testing.TB, input string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	binary, err := framework.DroverBinary()
	assert.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), kubectlTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append([]string{"kubectl", "--kubeconfig=" + env.Kubeconfig}, args...)...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// MustRunKubectl is RunKubectl for commands that must succeed.
func (env *Environment) MustRunKubectl(t testing.TB, input string, args ...string) string {
	t.Helper()
	out, errs, err := env.RunKubectl(t, input, args...)
	assert.Require(t, err == nil, "kubectl %s: %v: %s", strings.Join(args, " "), err, errs)
	return out
}
