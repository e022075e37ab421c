// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/leader"
)

// Options are the controller's flags.
type Options struct {
	Kubeconfig string
	Threads    int
	VMDriver   string

	LeaderElect        bool
	Election           leader.Settings
	HolderIdentity     string
	LeaseLockName      string
	LeaseLockNamespace string
	// DeadHolder, if not nil, reports whether a holder of the Lease has certainly
	// ended.
	DeadHolder func(identity string) bool

	// StopTimeout is how long running calls may take to end after a stop; -1 means any time.
	StopTimeout time.Duration

	MetricsAddress string
	MetricsSecure  bool
	MetricsCertDir string
	HealthAddress  string
	PprofAddress   string
	// explicit records which addresses were set by a flag or a variable: if one of
	// these is in use, that is an error.
	explicit struct{ metrics, health bool }

	UsagePeriod  time.Duration
	ListPeriod   time.Duration
	OrphanGrace  time.Duration
	OrphanPolicy string
	OrphanMax    int

	// WriteDecision, if not nil, gets each *decisions.Record and decisions.Update. Only tests set
	// it; in builds with the tag faults, the flag --decisions does.
	WriteDecision func(line any)

	Streams StreamsOptions

	Drivers registry.Settings
	// OwnDirs are the folders of the program, whose files are never used as images.
	OwnDirs []string

	// OwnCRD is set by a caller that has just installed the CRD that this program
	// was built with. The CRD is then not checked.
	OwnCRD bool

	// Started, if not nil, is called once the cache is filled, this process leads or stands by, and the engine of
	// the default driver was listed or could not be.
	Started func()
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		Threads: 16, VMDriver: registry.Auto,
		LeaderElect: true, Election: leader.DefaultSettings(), LeaseLockName: "drover-controller",
		StopTimeout:    5 * time.Second,
		MetricsAddress: "127.0.0.1:8080", HealthAddress: "127.0.0.1:8081", PprofAddress: "0",
		UsagePeriod: 30 * time.Second, ListPeriod: 30 * time.Second,
		OrphanGrace: time.Minute, OrphanPolicy: string(inventory.OrphanDelete),
		Streams: defaultStreams(), Drivers: registry.DefaultSettings(),
	}
}

// AddFlags adds all flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "path of a kubeconfig; empty means in-cluster")
	o.addElectionFlags(fs)
	o.Streams.addEndpointFlags(fs)
	o.AddControllerFlags(fs)
}

func (o *Options) addElectionFlags(fs *pflag.FlagSet) {
	e := &o.Election
	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "act only as the elected leader; false only if no other process runs")
	fs.DurationVar(&e.Lease, "leader-elect-lease-duration", e.Lease, "how long standbys wait after the last renewal that they observed before they take over; whole seconds, at most 1h")
	fs.DurationVar(&e.Renew, "leader-elect-renew-deadline", e.Renew, "how long a leader tries to renew before it exits")
	fs.DurationVar(&e.Retry, "leader-elect-retry-period", e.Retry, "time between attempts to get or renew the Lease")
	fs.StringVar(&o.HolderIdentity, "holder-identity", o.HolderIdentity, "this replica's name in the Lease, made unique by a suffix; empty means POD_NAME, or else the host's name")
	fs.StringVar(&o.LeaseLockName, "lease-lock-name", o.LeaseLockName, "name of the Lease")
	fs.StringVar(&o.LeaseLockNamespace, "lease-lock-namespace", o.LeaseLockNamespace, "namespace of the Lease; empty means the pod's namespace, or default outside a pod and with --kubeconfig")
}

// AddControllerFlags adds the flags that drover up has too.
func (o *Options) AddControllerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.VMDriver, "vm-driver", o.VMDriver, "drivers to run, a comma-separated list whose first is the default, or auto for docker and qemu as far as their engines answer; known are "+strings.Join(registry.Names(), ", "))
	fs.IntVar(&o.Threads, "threads", o.Threads, "number of workers per driver, of which one namespace has at most three quarters")
	fs.Var(address{&o.MetricsAddress, &o.explicit.metrics}, "metrics-bind-address", "address of the metrics endpoint; 0 turns it off, and a default address that is in use is skipped")
	fs.BoolVar(&o.MetricsSecure, "metrics-secure", o.MetricsSecure, "serve metrics by HTTPS, and only to users that the API server allows to get /metrics")
	fs.StringVar(&o.MetricsCertDir, "metrics-cert-dir", o.MetricsCertDir, "folder with tls.crt and tls.key for --metrics-secure; empty means a self-signed certificate")
	fs.Var(address{&o.HealthAddress, &o.explicit.health}, "health-probe-bind-address", "address of /healthz and /readyz; 0 turns them off, and a default address that is in use is skipped")
	fs.StringVar(&o.PprofAddress, "pprof-bind-address", o.PprofAddress, "address of /debug/pprof, which shows the program's internals without authentication; 0 turns it off")
	fs.DurationVar(&o.UsagePeriod, "usage-period", o.UsagePeriod, "time between usage samples")
	fs.DurationVar(&o.ListPeriod, "list-period", o.ListPeriod, "time between complete lists of an engine; its events are watched in between")
	fs.DurationVar(&o.OrphanGrace, "orphan-grace", o.OrphanGrace, "how long a server must have been without a VirtualMachine before it is removed")
	fs.StringVar(&o.OrphanPolicy, "orphan-policy", o.OrphanPolicy, "what to do with servers without a VirtualMachine: delete or report")
	fs.IntVar(&o.OrphanMax, "orphan-max", o.OrphanMax, "raises the number of orphans that may be removed at once, which is 3 or a tenth of the servers, whichever is more")
	addDecisionsFlag(fs, o)
	o.Streams.addLimitFlags(fs)
	o.Drivers.AddFlags(fs)
}

// SetFromEnv sets every flag that was not given from its environment variable
// DROVER_<FLAG>.
func SetFromEnv(fs *pflag.FlagSet) error {
	var err error
	fs.VisitAll(func(f *pflag.Flag) {
		name := "DROVER_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := os.LookupEnv(name)
		if !ok || f.Changed || err != nil || f.Name == "help" || f.Name == "version" {
			return
		}
		if setErr := fs.Set(f.Name, value); setErr != nil {
			err = fmt.Errorf("environment variable %s: %w", name, setErr)
		}
	})
	return err
}

// Validate returns an error that names the flag, its value and the allowed values.
func (o *Options) Validate() error {
	policies := []string{string(inventory.OrphanDelete), string(inventory.OrphanReport)}
	switch {
	case o.Threads < 1:
		return fmt.Errorf("--threads is %d: it must be at least 1", o.Threads)
	case !slices.Contains(policies, o.OrphanPolicy):
		return fmt.Errorf("--orphan-policy is %q: it must be one of %s", o.OrphanPolicy, strings.Join(policies, ", "))
	case o.MetricsCertDir != "" && !o.MetricsSecure:
		return errors.New("--metrics-cert-dir is given without --metrics-secure")
	case o.OrphanMax < 0:
		return fmt.Errorf("--orphan-max is %d: it must not be negative", o.OrphanMax)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"usage-period", o.UsagePeriod}, {"list-period", o.ListPeriod}, {"orphan-grace", o.OrphanGrace}} {
		if d.value < time.Second {
			return fmt.Errorf("--%s is %s: it must be at least 1s", d.flag, d.value)
		}
	}
	if err := errors.Join(o.Streams.validate(), o.validateElection()); err != nil {
		return err
	}
	return o.Drivers.Check(o.VMDriver, o.Streams.Address != "")
}

func (o *Options) validateElection() error {
	if !o.LeaderElect {
		return nil
	}
	if o.LeaseLockName == "" {
		return errors.New("--lease-lock-name is empty: it must be the name of a Lease")
	}
	if err := o.Election.Validate(); err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	return nil
}
