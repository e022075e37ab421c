// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
)

// How long a program may take; Helm and images are built if they are not there yet.
const (
	CommandTimeout = 3 * time.Minute
	BuildTimeout   = 10 * time.Minute
)

// RunCommand runs a program to its end and returns what it printed.
func RunCommand(t testing.TB, within time.Duration, env []string, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// MustRunCommand is RunCommand for a program that must succeed.
func MustRunCommand(t testing.TB, within time.Duration, env []string, name string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := RunCommand(t, within, env, name, args...)
	assert.Require(t, err == nil, "%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, stdout, stderr)
	return stdout, stderr
}

// RunKubectl runs the kubectl in bin/drover, which must succeed.
func RunKubectl(t testing.TB, kubeconfig string, args ...string) (stdout, stderr string) {
	t.Helper()
	binary, err := DroverBinary()
	assert.NoError(t, err)
	return MustRunCommand(t, CommandTimeout, []string{"KUBECONFIG=" + kubeconfig}, binary, append([]string{"kubectl"}, args...)...)
}

// helm is the path of the Helm that hack/tools/helm pins, once it is built.
var helm struct {
	sync.Mutex
	path string
}

// HelmPath returns the Helm that hack/tools pins, which is built if it is not there yet.
func HelmPath(t testing.TB) string {
	t.Helper()
	helm.Lock()
	defer helm.Unlock()
	if helm.path == "" {
		root, err := RepositoryRoot()
		assert.NoError(t, err)
		out, _ := MustRunCommand(t, BuildTimeout, nil, filepath.Join(root, "hack", "tool.sh"), "helm")
		helm.path = strings.TrimSpace(out)
	}
	return helm.path
}

// RunHelm runs Helm, which must succeed.
func RunHelm(t testing.TB, kubeconfig string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := TryHelm(t, kubeconfig, args...)
	assert.Require(t, err == nil, "helm %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	return stdout, stderr
}

// TryHelm runs Helm without the settings of the user who tests.
func TryHelm(t testing.TB, kubeconfig string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	dir := t.TempDir() // not the settings of the tester
	env := []string{"KUBECONFIG=" + kubeconfig, "HELM_CACHE_HOME=" + dir, "HELM_CONFIG_HOME=" + dir, "HELM_DATA_HOME=" + dir}
	return RunCommand(t, CommandTimeout, env, HelmPath(t), args...)
}
