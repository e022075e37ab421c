// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/framework"
)

// cleanupTimeout bounds the cleanup after the tests.
const cleanupTimeout = time.Minute

// Environment is a cluster and the engines on which its VMs run.
type Environment struct {
	*framework.Cluster
	VMClient   versioned.Interface
	KubeClient kubernetes.Interface
	// ClusterID is the cluster's id, as servers carry it.
	ClusterID string
	// FakeDir is the fake engine's folder.
	FakeDir string

	faults string
	temp   string
}

// New starts a cluster without a controller. The caller must Close it.
func New() (*Environment, error) {
	w := &Environment{}
	cluster, err := framework.NewCluster(framework.ClusterOptions{})
	if err != nil {
		return nil, err
	}
	w.Cluster = cluster
	if err := w.openClients(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *Environment) openClients() (err error) {
	config := rest.CopyConfig(w.Config)
	if w.VMClient, err = versioned.NewForConfig(config); err != nil {
		return err
	}
	if w.KubeClient, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	system, err := w.KubeClient.CoreV1().Namespaces().Get(context.Background(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return err
	}
	w.ClusterID = string(system.UID)
	if w.temp, err = os.MkdirTemp("", "drover-world-"); err != nil {
		return err
	}
	w.FakeDir = filepath.Join(w.temp, "fake")
	w.faults = filepath.Join(w.temp, "faults.yaml")
	return os.Mkdir(w.FakeDir, 0o700)
}

// Start is NewWorld for one test.
func Start(t testing.TB) *Environment {
	t.Helper()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// Close stops the cluster and removes all of its remains, containers included.
func (w *Environment) Close() error {
	err := w.Cluster.Close()
	if w.ClusterID != "" {
		err = errors.Join(err, w.removeContainers())
	}
	return errors.Join(err, os.RemoveAll(w.temp))
}

func (w *Environment) removeContainers() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	c, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	all, err := c.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", docker.LabelCluster+"="+w.ClusterID),
	})
	if err != nil {
		return nil // without an engine there are no containers
	}
	for _, one := range all.Items {
		_, _ = c.ContainerRemove(ctx, one.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}
	return nil
}

// CreateNamespace creates a namespace for one test. Its VMs are deleted at the end,
// without waiting for that.
func (w *Environment) CreateNamespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}
	made, err := w.KubeClient.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.DeleteNamespaceAtEnd(t, made.Name)
	return made.Name
}

// CreateNamedNamespace creates a namespace of that name, as Namespace does.
func (w *Environment) CreateNamedNamespace(t testing.TB, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := w.KubeClient.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.DeleteNamespaceAtEnd(t, name)
}

// DeleteNamespaceAtEnd deletes a namespace when the test ends.
func (w *Environment) DeleteNamespaceAtEnd(t testing.TB, ns string) {
	t.Cleanup(func() {
		_ = w.KubeClient.CoreV1().Namespaces().Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
}

// SetFaults makes the fake engine fail as the text says (see package faultinject) from
// now on; an empty text ends it.
func (w *Environment) SetFaults(t testing.TB, text string) {
	t.Helper()
	next := w.faults + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, w.faults)); err != nil {
		t.Fatal(err)
	}
}

// RunKubectl runs kubectl with input, and returns what it printed.
func (w *Environment) RunKubectl(t testing.TB, input string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	binary, err := framework.DroverBinary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append([]string{"kubectl", "--kubeconfig=" + w.Kubeconfig}, args...)...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// MustRunKubectl is Kubectl for commands that must succeed.
func (w *Environment) MustRunKubectl(t testing.TB, input string, args ...string) string {
	t.Helper()
	out, errs, err := w.RunKubectl(t, input, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, errs)
	}
	return out
}

// Metrics is a page of a program's metrics.
type Metrics []byte

// Sum adds up the metrics of that name whose labels have all of the texts.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for line := range strings.Lines(string(m)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		has := true
		for _, text := range labels {
			has = has && strings.Contains(line, text)
		}
		value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if has && err == nil {
			sum += value
		}
	}
	return sum
}

// ReadAPIMetrics are those of the API server.
func (w *Environment) ReadAPIMetrics(t testing.TB) Metrics {
	t.Helper()
	page, err := w.KubeClient.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return page
}
