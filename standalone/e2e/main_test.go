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
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

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

// runDrover runs the program to its end, without the tester's own settings.
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

func dynamicFor(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	assert.NoError(t, err)
	return client
}

func newConfigMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func createConfigMap(t *testing.T, client kubernetes.Interface, namespace string, object *corev1.ConfigMap) *corev1.ConfigMap {
	t.Helper()
	made, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, metav1.CreateOptions{})
	assert.NoError(t, err)
	return made
}

// newNamespace creates a namespace that is removed after the test.
func newNamespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	assert.NoError(t, err)
	t.Cleanup(func() {
		_ = client.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{})
	})
	return ns.Name
}

func nonEmptyLines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}
