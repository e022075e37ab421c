// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	apply "cloudnative.tw/drover/client/applyconfiguration/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// patience is longer than the slowest machine takes to fill a cache.
const patience = time.Hour

var cluster *framework.Cluster

func TestMain(m *testing.M) { os.Exit(framework.RunTests(m, &cluster, framework.ClusterOptions{})) }

func TestListsAll(t *testing.T) {
	client := newClient(t)
	create(t, client, "list-b")
	a := create(t, client, "list-a")
	setPhase(t, client, a, v1alpha1.PhaseActive, &v1alpha1.Usage{CPU: 0, Memory: 12.5})

	var out bytes.Buffer
	assert.NoError(t, listVMs(t.Context(), client, options{namespace: "default", syncTimeout: patience}, &out))
	var got []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "NAMESPACE") || strings.Contains(line, " list-") {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
	}
	want := "NAMESPACE NAME STATUS CPU MEMORY|default list-a Active 0.00% 12.50%|default list-b - - -"
	assert.Equal(t, "printed", strings.Join(got, "|"), want)
}

func TestWatchPrintsChangesUntilTheEnd(t *testing.T) {
	client := newClient(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- listVMs(ctx, client, options{watch: true, syncTimeout: patience}, writer) }()
	lines := scan(reader)

	waitFor(t, lines, "NAMESPACE")
	vm := create(t, client, "watched")
	waitFor(t, lines, "added    default/watched -")
	setPhase(t, client, vm, v1alpha1.PhaseActive, &v1alpha1.Usage{CPU: 3, Memory: 4})
	waitFor(t, lines, "changed  default/watched Active cpu 3.00% memory 4.00%")
	assert.NoError(t, client.CloudnativeV1alpha1().VirtualMachines("default").Delete(t.Context(), "watched", metav1.DeleteOptions{}))
	waitFor(t, lines, "deleted  default/watched")

	cancel()
	assert.Eventually(t, "the run ends with its context", func(testing.TB) error {
		select {
		case err := <-done:
			assert.ErrorIs(t, "it ended with, want nil after an interruption", err, nil)
			return nil
		default:
			return errors.New("it goes on")
		}
	})
}

func TestListError(t *testing.T) {
	const address = "127.0.0.1:1" // nothing listens there
	client, err := versioned.NewForConfig(&rest.Config{Host: "http://" + address})
	assert.NoError(t, err)
	err = listVMs(t.Context(), client, options{syncTimeout: patience}, io.Discard)
	assert.ErrorSays(t, "no server", err, address)
}

func TestPrintError(t *testing.T) {
	err := listVMs(t.Context(), newClient(t), options{watch: true, syncTimeout: patience}, brokenWriter{})
	assert.ErrorIs(t, "a broken writer", err, errBroken)
}

func TestKubeconfig(t *testing.T) {
	client, err := newClientFor(cluster.Kubeconfig)
	assert.NoError(t, err)
	if _, err := client.CloudnativeV1alpha1().VirtualMachines("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	_, err = newClientFor(t.TempDir() + "/absent")
	assert.True(t, err != nil, "a kubeconfig that does not exist gave no error")
}

var errBroken = errors.New("broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func newClient(t *testing.T) versioned.Interface {
	t.Helper()
	client, err := versioned.NewForConfig(cluster.Config)
	assert.NoError(t, err)
	return client
}

// create applies a VirtualMachine, as a controller of a user would.
func create(t *testing.T, client versioned.Interface, name string) *v1alpha1.VirtualMachine {
	t.Helper()
	vms := client.CloudnativeV1alpha1().VirtualMachines("default")
	wanted := apply.VirtualMachine(name, "default").WithSpec(apply.VirtualMachineSpec().
		WithResource(framework.NewVM(name).Obj().Spec.Resource))
	vm, err := vms.Apply(t.Context(), wanted, metav1.ApplyOptions{FieldManager: "test"})
	assert.NoError(t, err)
	t.Cleanup(func() {
		// The context of the test has ended by now, and the VM may have gone.
		_ = vms.Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return vm
}

func setPhase(t *testing.T, client versioned.Interface, vm *v1alpha1.VirtualMachine, phase v1alpha1.Phase, usage *v1alpha1.Usage) {
	t.Helper()
	vm.Status.Phase = phase
	vm.Status.Server = &v1alpha1.ServerStatus{ID: "1", Usage: usage}
	_, err := client.CloudnativeV1alpha1().VirtualMachines(vm.Namespace).UpdateStatus(t.Context(), vm, metav1.UpdateOptions{})
	assert.NoError(t, err)
}

// scan reads all lines.
func scan(reader io.Reader) <-chan string {
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	return lines
}

func waitFor(t *testing.T, lines <-chan string, prefix string) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("a line begins with %q", prefix), func(testing.TB) error {
		for {
			select {
			case line, isOpen := <-lines:
				if strings.HasPrefix(line, prefix) {
					return nil
				}
				if !isOpen {
					return errors.New("the output has ended")
				}
			default:
				return errors.New("there is none")
			}
		}
	})
}
