// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// TestPodStreams uses kubectl vm with streams of pods, of a guest with a running agent.
func TestPodStreams(t *testing.T) {
	tier.Full(t, "it emulates a Linux on real kubelets; TestGuest of package pod has a machine without an agent, and its contract suite a simulated guest")
	certs, address := t.TempDir(), framework.FreeAddress(t)
	assert.NoError(t, assert.ErrorOf(framework.WriteServerCertificate(certs)))
	t.Cleanup(func() { forgetStreams(t) }) // after the controller has ended
	w := newPodWorld(t, "--pod-streams", "--streams-address="+address, "--streams-cert-dir="+certs, "--streams-url=https://"+address)
	assert.Eventually(t, "the address is published", func(testing.TB) error {
		return assert.ErrorOf(shared.Client.CoreV1().ConfigMaps(streamsapi.ConfigMapNamespace).Get(t.Context(), streamsapi.ConfigMapName, metav1.GetOptions{}))
	})
	g := w.createGuest(t, "reached", func(spec *api.VirtualMachineSpec) {
		spec.Image.Kernel.Cmdline += " agent=honest"
	})
	for name, c := range map[string]struct {
		stdin, verb string
		args        []string
		out         string
		code        int
	}{
		"output":       {"", "exec", []string{"--", "echo", "a  b"}, "a  b\n", 0},
		"exit code":    {"", "exec", []string{"--", "exit", "7"}, "", 7},
		"input":        {"typed\n", "exec", []string{"-i", "--", "cat"}, "typed\n", 0},
		"not found":    {"", "exec", []string{"--", "no-such-program"}, "not found", 127},
		"a terminal":   {"", "exec", []string{"-i", "-t", "--", "echo", "x"}, "x\n", 0}, // no terminal there without a terminal here
		"interfaces":   {"", "ip", nil, "eth0", 0},
		"log":          {"", "logs", nil, "drover linux guest 1 is up", 0},
		"previous log": {"", "logs", []string{"--previous"}, "no earlier run is known", 1},
	} {
		out, code := g.runVM(t, c.stdin, c.verb, c.args...)
		assert.True(t, strings.Contains(out, c.out) && code == c.code, "%s: %q, exit code %d, want %q, %d", name, out, code, c.out, c.code)
	}
	checkForwarded(t, g)
	console := startConsole(t, g)
	console.typeLine(t, "typed")
	g.stop(t)
	console.waitFor(t, "drover linux guest powers off")
	console.wait(t)
	out, code := g.runVM(t, "", "exec", "--", "echo")
	assert.True(t, code == 1 && strings.Contains(out, "is stopped"), "a command in a VM that is off: %q, exit code %d", out, code)
	g.delete(t)
	w.checkNoGuestLeft(t)
}

// forgetStreams removes the published address of the streams, so that kubectl vm does not use it in other tests.
func forgetStreams(t *testing.T) {
	t.Helper()
	maps := shared.Client.CoreV1().ConfigMaps(streamsapi.ConfigMapNamespace)
	assert.NoError(t, maps.Delete(context.WithoutCancel(t.Context()), streamsapi.ConfigMapName, metav1.DeleteOptions{}))
}

// runVM runs a verb of kubectl vm with the guest, and returns all that it has printed.
func (g *guest) runVM(t *testing.T, stdin, verb string, args ...string) (printed string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), g.kubectlVM, append([]string{"-n", g.namespace, verb, g.name}, args...)...)
	var out bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig), strings.NewReader(stdin), &out, &out
	_ = cmd.Run()
	return out.String(), cmd.ProcessState.ExitCode()
}
