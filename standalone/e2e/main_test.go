// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the program drover from the outside: what `drover up` promises, with
// real components. Start with cluster_test.go for the behaviour of its API, and
// lifecycle_test.go for its start and end.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// shared is for tests that leave the cluster as they found it.
var shared *framework.Cluster

func TestMain(m *testing.M) { os.Exit(framework.RunTests(m, &shared, framework.ClusterOptions{})) }

// commandResult of a program that ended.
type commandResult struct {
	code        int
	out, errOut string
}

// runDrover runs the program to its end, without the settings of the tester.
func runDrover(t *testing.T, stdin string, env []string, args ...string) commandResult {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), droverBinary(t), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "DROVER_DATA_DIR=")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewBufferString(stdin), &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return commandResult{code: cmd.ProcessState.ExitCode(), out: out.String(), errOut: errOut.String()}
}

func droverBinary(t *testing.T) string {
	t.Helper()
	path, err := framework.DroverBinary()
	assert.NoError(t, err)
	return path
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	assert.NoError(t, err)
	return client
}

// objectsFor returns a client that knows VirtualMachines, too.
func objectsFor(t testing.TB, config *rest.Config) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	assert.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), api.AddToScheme(scheme)))
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	assert.NoError(t, err)
	return c
}

func newConfigMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func create[T client.Object](t *testing.T, c client.Client, object T) T {
	t.Helper()
	assert.NoError(t, c.Create(t.Context(), object))
	return object
}

func waitForDeletion(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	assert.Eventually(t, object.GetName()+" goes", func(t testing.TB) error {
		err := c.Get(t.Context(), client.ObjectKeyFromObject(object), object)
		if err == nil {
			return errors.New("it is still there")
		}
		return client.IgnoreNotFound(err)
	})
}

// waitForServiceAccount returns the account that kube-controller-manager makes in each namespace.
func waitForServiceAccount(t *testing.T, c client.Client, ns string) *corev1.ServiceAccount {
	t.Helper()
	account := &corev1.ServiceAccount{}
	assert.Eventually(t, "the namespace has its service account", func(t testing.TB) error {
		return c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "default"}, account)
	})
	return account
}

// newNamespace creates a namespace that is removed after the test.
func newNamespace(t *testing.T, c client.Client) string {
	t.Helper()
	ns := create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}})
	t.Cleanup(func() { _ = c.Delete(context.Background(), ns) })
	return ns.Name
}

func nonEmptyLines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}
