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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// runTimeout bounds every run. It is far longer than any takes.
const runTimeout = 2 * time.Minute

// user runs the program in a namespace.
type user struct {
	t         testing.TB
	namespace string
	flags     []string
	stdin     io.Reader
}

// newUser returns a user with a namespace of its own.
func newUser(t testing.TB) *user {
	t.Helper()
	return &user{t: t, namespace: environment.CreateNamespace(t), flags: []string{"--kubeconfig=" + environment.Kubeconfig}, stdin: strings.NewReader("")}
}

// result is what a run has printed.
type result struct {
	out, errs string
	code      int
}

// run runs a verb.
func (u *user) run(args ...string) result {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), runTimeout)
	defer cancel()
	return u.runWith(ctx, args...)
}

func (u *user) runWith(ctx context.Context, args ...string) result {
	var out, errs buffer
	code := app.Main(ctx, u.args(args), genericiooptions.IOStreams{In: u.stdin, Out: &out, ErrOut: &errs})
	if ctx.Err() == context.DeadlineExceeded {
		u.t.Errorf("kubectl vm %s did not end: %s%s", strings.Join(args, " "), out.String(), errs.String())
	}
	return result{out.String(), errs.String(), code}
}

// args returns a command line with the flags of the user, in front of dashes.
func (u *user) args(args []string) []string {
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	return slices.Concat([]string{"kubectl-vm"}, args[:end], []string{"--namespace=" + u.namespace}, u.flags, args[end:])
}

// must is run for what must succeed, and returns the output.
func (u *user) must(args ...string) string {
	u.t.Helper()
	r := u.run(args...)
	if r.code != 0 {
		u.t.Fatalf("kubectl vm %s ended with %d: %s%s", strings.Join(args, " "), r.code, r.out, r.errs)
	}
	return r.out
}

// eventually is must for what a new role allows: the API server takes a moment to apply it.
func (u *user) eventually(args ...string) {
	u.t.Helper()
	assert.Eventually(u.t, strings.Join(args, " ")+" is allowed", func(testing.TB) error {
		if r := u.run(args...); r.code != 0 {
			return fmt.Errorf("it ended with %d: %s%s", r.code, r.out, r.errs)
		}
		return nil
	})
}

// fails runs what must fail with a code, and with texts in what it prints.
func (u *user) fails(code int, texts []string, args ...string) result {
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

// create creates a simulated VM that is ready, with further flags.
func (u *user) create(name string, flags ...string) *api.VirtualMachine {
	u.t.Helper()
	u.must(append([]string{"create", name, "--driver=fake", "--wait"}, flags...)...)
	return u.get(name)
}

// get reads a VM.
func (u *user) get(name string) *api.VirtualMachine {
	u.t.Helper()
	vm := u.find(name)
	if vm == nil {
		u.t.Fatalf("there is no VM %s", name)
	}
	return vm
}

// find is get for a VM that may not be there.
func (u *user) find(name string) *api.VirtualMachine {
	u.t.Helper()
	vm, err := environment.VMClient.CloudnativeV1alpha1().VirtualMachines(u.namespace).Get(u.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		u.t.Fatal(err)
	}
	return vm
}

// waitFor waits for a VM to pass a check.
func (u *user) waitFor(name string, check framework.VMCheck) {
	u.t.Helper()
	environment.WaitForVM(u.t, u.get(name), check)
}

// buffer is a buffer that may be read while it is written.
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

// failing is the name of VMs that are never created, and slow is that of VMs whose creation
// takes long enough to be watched.
const failing, slow = "failing", "slow"

// setFaults has the fake engine treat VMs of these names so.
func (u *user) setFaults() {
	u.t.Helper()
	environment.SetFaults(u.t, failing+": {failCreate: 1000000, message: out of luck}\n"+slow+": {latency: 5s}\n")
}

// createFailing creates a VM whose creation fails, again and again.
func (u *user) createFailing(flags ...string) result {
	u.t.Helper()
	u.setFaults()
	return u.run(append([]string{"create", failing, "--driver=fake"}, flags...)...)
}

// want fails unless a text has all parts.
func want(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("there is no %q in:\n%s", part, text)
		}
	}
}
