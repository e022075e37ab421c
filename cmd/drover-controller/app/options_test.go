// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/test/assert"
)

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*Options)
		says   string
	}{
		"the defaults":      {func(*Options) {}, ""},
		"no threads":        {func(o *Options) { o.Threads = 0 }, "--threads is 0: it must be at least 1"},
		"an unknown driver": {func(o *Options) { o.VMDriver = "xen" }, `"xen" is not a driver; known are docker, qemu, fake`},
		"a long path":       {setQEMUDir("/" + strings.Repeat("d", 80)), "its path has 81 bytes and may have 54, since sockets below it are limited to 107: name a shorter one by --qemu-dir"},
		"a public network":  {setQEMU(func(o *qemu.Options) { o.Network = "8.8.0.0/16" }), `--qemu-network is "8.8.0.0/16": it must be a private IPv4 range of /8 to /29`},
		"an unknown egress": {setQEMU(func(o *qemu.Options) { o.Egress = "some" }), `--qemu-egress is "some": it must be allow or deny`},
		"an unknown policy": {func(o *Options) { o.OrphanPolicy = "keep" }, `--orphan-policy is "keep": it must be one of delete, report`},
		"a negative number": {func(o *Options) { o.OrphanMax = -1 }, "--orphan-max is -1"},
		"no grace":          {func(o *Options) { o.OrphanGrace = 0 }, "--orphan-grace is 0s: it must be at least 1s"},
		"a short period":    {func(o *Options) { o.UsagePeriod = time.Millisecond }, "--usage-period is 1ms"},
		"a short list":      {func(o *Options) { o.ListPeriod = time.Millisecond }, "--list-period is 1ms"},
		"no Lease":          {func(o *Options) { o.LeaseLockName = "" }, "--lease-lock-name is empty"},
		"a long election":   {setElectionTimes(60*time.Second, 15*time.Second, 5*time.Second), ""},
		"a tight election": {
			setElectionTimes(3*time.Second, 2900*time.Millisecond, 500*time.Millisecond),
			"leader election: retry period + margin + max(renew deadline, 2s) + 200ms must be at most the lease: 500ms + 200ms + 2.9s + 200ms is more than 3s",
		},
		"streams":                 {setStreams(StreamsOptions{":9444", "/certs", "https://drover.example:9444", 1, 1, nil}), ""},
		"streams without a limit": {setStreams(StreamsOptions{PerVM: 0, Total: 1}), "--streams-per-vm is 0: it must be at least 1"},
		"no streams at all":       {setStreams(StreamsOptions{PerVM: 1, Total: -1}), "--streams-max is -1: it must be at least 1"},
		"streams by HTTP":         {setStreams(StreamsOptions{":9444", "/certs", "http://drover.example", 1, 1, nil}), `--streams-url is "http://drover.example": it must be https://HOST`},
		"streams below a path":    {setStreams(StreamsOptions{":9444", "/certs", "https://drover.example/x", 1, 1, nil}), "--streams-url is"},
		"streams without a URL":   {setStreams(StreamsOptions{":9444", "/certs", "", 1, 1, nil}), `--streams-url is ""`},
		"streams in the clear":    {setStreams(StreamsOptions{":9444", "", "https://drover.example", 1, 1, nil}), "--streams-address is given without --streams-cert-dir"},
		"streams nowhere":         {setStreams(StreamsOptions{"", "/certs", "", 1, 1, nil}), "--streams-cert-dir is given without --streams-address"},
		"a URL of nothing":        {setStreams(StreamsOptions{"", "", "https://drover.example", 1, 1, nil}), "--streams-url is given without --streams-address"},
		"streams without a port":  {setStreams(StreamsOptions{"drover.example", "/certs", "https://drover.example", 1, 1, nil}), `--streams-address is "drover.example": it must be HOST:PORT`},
		"pods without streams":    {setPodStreams(""), "--pod-streams is given without --streams-address"},
		"pods with streams":       {setPodStreams(":9444"), ""},
		"part of a second":        {setElectionTimes(15500*time.Millisecond, 10*time.Second, 2*time.Second), "the lease is 15.5s: it must be a whole number of seconds"},
		"no election":             {func(o *Options) { o.LeaderElect, o.Election.Lease, o.LeaseLockName = false, 0, "" }, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			tc.change(o)
			err := o.Validate()
			assert.ErrorSays(t, name, err, tc.says)
		})
	}
}

func setStreams(streams StreamsOptions) func(*Options) {
	return func(o *Options) { o.Streams = streams }
}

// setPodStreams has streams of pods served at an address.
func setPodStreams(address string) func(*Options) {
	return func(o *Options) {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(flags)
		_ = errors.Join(flags.Set("vm-driver", "pod"), flags.Set("pod-streams", "true")) // else nothing is refused
		if o.Streams.Address = address; address != "" {
			o.Streams.CertDir, o.Streams.URL = "/certs", "https://drover.example:9444"
		}
	}
}

func setQEMUDir(dir string) func(*Options) {
	return func(o *Options) { o.VMDriver, *o.Drivers["qemu"].DataDir() = "qemu", dir }
}

func setQEMU(change func(*qemu.Options)) func(*Options) {
	return func(o *Options) {
		o.VMDriver = qemu.Name
		change(o.Drivers[qemu.Name].(*qemu.Options))
	}
}

func setElectionTimes(lease, renew, retry time.Duration) func(*Options) {
	return func(o *Options) { o.Election.Lease, o.Election.Renew, o.Election.Retry = lease, renew, retry }
}

// TestLeaseNamespace checks that the pod's namespace is not used for another
// cluster.
func TestLeaseNamespace(t *testing.T) {
	for name, tc := range map[string]struct{ flag, kubeconfig, want string }{
		"given":              {"blue", "/x", "blue"},
		"given, no file":     {"blue", "", "blue"},
		"with a kubeconfig":  {"", "/x", "default"},
		"neither, nor a pod": {"", "", "default"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &Options{LeaseLockNamespace: tc.flag, Kubeconfig: tc.kubeconfig}
			got, err := o.leaseNamespace()
			assert.True(t, err == nil && got == tc.want, "got %q, %v; want %q", got, err, tc.want)
		})
	}
}

// TestFlagsOfTheTutorials checks that the tutorials' flags are accepted as written
// there.
func TestFlagsOfTheTutorials(t *testing.T) {
	args := []string{
		"--kubeconfig=/x", "--threads=2", "--vm-driver=docker", "--leader-elect=true", "--holder-identity=test1",
		"--lease-lock-name=vm-controller", "--lease-lock-namespace=default", "--leader-elect-lease-duration=60s",
		"--leader-elect-renew-deadline=15s", "--leader-elect-retry-period=5s", "-v=2", "--logtostderr",
		"--metrics-bind-address=:1", "--health-probe-bind-address=:2",
	}
	cmd := NewCommand()
	assert.NoError(t, cmd.ParseFlags(args))
	cmd.SetArgs([]string{"--version"})
	var out strings.Builder
	cmd.SetOut(&out)
	err := cmd.Execute()
	assert.True(t, err == nil && strings.Contains(out.String(), Version), "--version prints %q, %v", out.String(), err)
}

// TestVerbosity checks that no verbosity is accepted at which the log has Secrets.
func TestVerbosity(t *testing.T) {
	for value, want := range map[string]string{"7": "", "8": "Secrets", "-1": "0 to 7", "much": "a number"} {
		assert.ErrorSays(t, value, NewCommand().ParseFlags([]string{"-v", value}), want)
	}
}

func TestSetFromEnv(t *testing.T) {
	t.Setenv("DROVER_THREADS", "3")
	t.Setenv("DROVER_VM_DRIVER", "fake")
	t.Setenv("DROVER_VERSION", "1.2")
	t.Setenv("DROVER_HELP", "me")
	o := NewOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.Bool("version", false, "")
	fs.Bool("help", false, "")
	o.AddFlags(fs)
	assert.NoError(t, fs.Parse([]string{"--vm-driver=docker"}))
	assert.NoError(t, SetFromEnv(fs))
	assert.True(t, o.Threads == 3 && o.VMDriver == "docker", "threads %d, driver %s: the variable counts unless the flag is given", o.Threads, o.VMDriver)
	t.Setenv("DROVER_ORPHAN_GRACE", "soon")
	assert.ErrorSays(t, "a wrong variable", SetFromEnv(fs), "DROVER_ORPHAN_GRACE")
}

func TestNoKubeconfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	assert.ErrorSays(t, "no kubeconfig", assert.ErrorOf(restConfig("")), "--kubeconfig")
	assert.ErrorSays(t, "an absent one", assert.ErrorOf(restConfig("/no/such/file")), "/no/such/file")
}
