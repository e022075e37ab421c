// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// user runs the program in a namespace.
type user struct {
	t         testing.TB
	env       *testenv.Environment
	namespace string
	flags     []string
	stdin     io.Reader
}

// newUser returns a user of the shared environment with a new namespace.
func newUser(t testing.TB) *user {
	t.Helper()
	return newUserOf(t, environment)
}

func newUserOf(t testing.TB, env *testenv.Environment) *user {
	t.Helper()
	return &user{t: t, env: env, namespace: env.CreateNamespace(t), flags: []string{"--kubeconfig=" + env.Kubeconfig}, stdin: strings.NewReader("")}
}

// result is the output and exit code of a command.
type result struct {
	out, errs string
	code      int
}

func (u *user) run(args ...string) result {
	u.t.Helper()
	var out, errs buffer
	code := app.Main(u.t.Context(), u.args(args), genericiooptions.IOStreams{In: u.stdin, Out: &out, ErrOut: &errs})
	return result{out.String(), errs.String(), code}
}

// job is a verb that runs beside its test.
type job struct {
	out, errs buffer
	exit      chan int
}

// start starts a verb that ends at the latest when ctx ends.
func (u *user) start(ctx context.Context, args ...string) *job {
	j := &job{exit: make(chan int, 1)}
	go func() {
		j.exit <- app.Main(ctx, u.args(args), genericiooptions.IOStreams{In: u.stdin, Out: &j.out, ErrOut: &j.errs})
	}()
	return j
}

// waitForExit waits for the end of the verb, and returns its exit code.
func (j *job) waitForExit(t testing.TB) int {
	t.Helper()
	return waitForExit(t, j.exit)
}

func waitForExit(t testing.TB, exit <-chan int) (code int) {
	t.Helper()
	assert.Eventually(t, "the verb ends", func(testing.TB) error {
		select {
		case code = <-exit:
			return nil
		default:
			return errNotYet
		}
	})
	return code
}

// waitFor waits until the buffer has a text.
func (b *buffer) waitFor(t testing.TB, text string) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("%q is printed", text), func(testing.TB) error {
		all := b.String()
		return assert.ErrorUnless(strings.Contains(all, text), "the output is %q", all)
	})
}

// args returns a command line with the user's flags inserted before "--".
func (u *user) args(args []string) []string {
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	return slices.Concat([]string{"kubectl-vm"}, args[:end], []string{"--namespace=" + u.namespace}, u.flags, args[end:])
}

// program is how commands printed for this user begin: with flags that name the cluster and the
// namespace.
func (u *user) program() string {
	return "kubectl vm " + strings.Replace(strings.Join(u.flags, " "), "=", " ", 1) + " --namespace " + u.namespace
}

// mustRun runs a command that must succeed, and returns the output.
func (u *user) mustRun(args ...string) string {
	u.t.Helper()
	r := u.run(args...)
	if r.code != 0 {
		u.t.Fatalf("kubectl vm %s ended with %d: %s%s", strings.Join(args, " "), r.code, r.out, r.errs)
	}
	return r.out
}

// eventuallyRun is mustRun for a command that a new role allows: the API server takes a moment to apply it.
func (u *user) eventuallyRun(args ...string) {
	u.t.Helper()
	assert.Eventually(u.t, strings.Join(args, " ")+" is allowed", func(testing.TB) error {
		r := u.run(args...)
		return assert.ErrorUnless(r.code == 0, "it ended with %d: %s%s", r.code, r.out, r.errs)
	})
}

// mustFail runs a command that must fail with an exit code, and with texts in its output.
func (u *user) mustFail(code int, texts []string, args ...string) result {
	u.t.Helper()
	r := u.run(args...)
	if r.code != code {
		u.t.Errorf("kubectl vm %s ended with %d, want %d: %s%s", strings.Join(args, " "), r.code, code, r.out, r.errs)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.errs, text) {
			u.t.Errorf("kubectl vm %s does not say %q: %s%s", strings.Join(args, " "), text, r.out, r.errs)
		}
	}
	return r
}

// createVM creates a simulated VM that is ready, with further flags.
func (u *user) createVM(name string, flags ...string) *api.VirtualMachine {
	u.t.Helper()
	u.mustRun(append([]string{"create", name, "--driver=fake", "--wait"}, flags...)...)
	return u.getVM(name)
}

// getVM reads a VM.
func (u *user) getVM(name string) *api.VirtualMachine {
	u.t.Helper()
	vm := u.findVM(name)
	if vm == nil {
		u.t.Fatalf("there is no VM %s", name)
	}
	return vm
}

// findVM reads a VM that may not exist.
func (u *user) findVM(name string) *api.VirtualMachine {
	u.t.Helper()
	vm, err := u.env.VMsIn(u.namespace).Get(u.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	assert.NoError(u.t, err)
	return vm
}

// waitFor waits for a VM to pass a check.
func (u *user) waitFor(name string, check framework.VMCheck) {
	u.t.Helper()
	u.env.WaitForVM(u.t, u.getVM(name), check)
}

// buffer is a bytes.Buffer that is safe for concurrent use.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// failing is the name of VMs whose creation always fails, and slow the name of VMs whose creation
// takes long enough to be observed.
const failing, slow = "failing", "slow"

// setFaults sets these faults of the fake engine.
func (u *user) setFaults() {
	u.t.Helper()
	environment.SetFaults(u.t, failing+": {failCreate: 1000000, message: out of luck}\n"+slow+": {latency: 5s}\n")
}

// createFailing creates a VM whose creation always fails.
func (u *user) createFailing(flags ...string) result {
	u.t.Helper()
	u.setFaults()
	return u.run(append([]string{"create", failing, "--driver=fake"}, flags...)...)
}

// waitForFailures waits until the creation of VM failing has failed twice.
func (u *user) waitForFailures() {
	u.t.Helper()
	u.waitFor(failing, func(vm *api.VirtualMachine) error {
		if op := vm.Status.Operation; op == nil || op.Attempts < 2 {
			return errNotYet
		}
		return nil
	})
}

// wantTexts fails unless a text contains all parts.
func wantTexts(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		assert.Contains(t, fmt.Sprintf("there is no %q in:\n", part), text, part)
	}
}
