// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rig

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
	"cloudnative.tw/drover/test/vmtest"
)

// cleanUpWithin bounds the cleanup after the tests.
const cleanUpWithin = time.Minute

// World is a cluster and the engines on which its VMs run.
type World struct {
	*vmtest.Cluster
	VMs  versioned.Interface
	Kube kubernetes.Interface
	// ID is the cluster's id, as servers carry it.
	ID string
	// FakeDir is the fake engine's folder.
	FakeDir string

	faults string
	temp   string
}

// NewWorld starts a cluster without a controller. The caller must Close it.
func NewWorld() (*World, error) {
	w := &World{}
	cluster, err := vmtest.NewCluster(vmtest.ClusterOptions{})
	if err != nil {
		return nil, err
	}
	w.Cluster = cluster
	if err := w.open(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *World) open() (err error) {
	config := rest.CopyConfig(w.Config)
	if w.VMs, err = versioned.NewForConfig(config); err != nil {
		return err
	}
	if w.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	system, err := w.Kube.CoreV1().Namespaces().Get(context.Background(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return err
	}
	w.ID = string(system.UID)
	if w.temp, err = os.MkdirTemp("", "drover-world-"); err != nil {
		return err
	}
	w.FakeDir = filepath.Join(w.temp, "fake")
	w.faults = filepath.Join(w.temp, "faults.yaml")
	return os.Mkdir(w.FakeDir, 0o700)
}

// Start is NewWorld for one test.
func Start(t testing.TB) *World {
	t.Helper()
	w, err := NewWorld()
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
func (w *World) Close() error {
	err := w.Cluster.Close()
	if w.ID != "" {
		err = errors.Join(err, w.removeContainers())
	}
	return errors.Join(err, os.RemoveAll(w.temp))
}

func (w *World) removeContainers() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpWithin)
	defer cancel()
	c, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	all, err := c.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", docker.LabelCluster+"="+w.ID),
	})
	if err != nil {
		return nil // without an engine there are no containers
	}
	for _, one := range all.Items {
		_, _ = c.ContainerRemove(ctx, one.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}
	return nil
}

// Namespace creates a namespace for one test. Its VMs are deleted at the end,
// without waiting for that.
func (w *World) Namespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}
	made, err := w.Kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Abandon(t, made.Name)
	return made.Name
}

// NamedNamespace creates a namespace of that name, as Namespace does.
func (w *World) NamedNamespace(t testing.TB, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := w.Kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Abandon(t, name)
}

// Abandon deletes a namespace when the test ends.
func (w *World) Abandon(t testing.TB, ns string) {
	t.Cleanup(func() {
		_ = w.Kube.CoreV1().Namespaces().Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
}

// Faults makes the fake engine fail as the text says (see package faultinject) from
// now on; an empty text ends it.
func (w *World) Faults(t testing.TB, text string) {
	t.Helper()
	next := w.faults + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, w.faults)); err != nil {
		t.Fatal(err)
	}
}

// Kubectl runs kubectl with input, and returns what it printed.
func (w *World) Kubectl(t testing.TB, input string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	binary, err := vmtest.DroverBinary()
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

// MustKubectl is Kubectl for commands that must succeed.
func (w *World) MustKubectl(t testing.TB, input string, args ...string) string {
	t.Helper()
	out, errs, err := w.Kubectl(t, input, args...)
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

// APIMetrics are those of the API server.
func (w *World) APIMetrics(t testing.TB) Metrics {
	t.Helper()
	page, err := w.Kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return page
}
