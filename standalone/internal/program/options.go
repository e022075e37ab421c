// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/internal/login"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/kubeconfig"
	"cloudnative.tw/drover/standalone/internal/runstate"
)

// UpOptions are the flags of drover up.
type UpOptions struct {
	DataDir           string
	BindAddress       string
	Port              int
	WithoutController bool
	Verbosity         int
	UnsafeNoFsync     bool
	AllAPIs           bool
	LoginDir          string
	Controller        *app.Options
	Out               io.Writer

	portGiven  bool
	storeQuota string
}

func newUpOptions() *UpOptions { return &UpOptions{Controller: newControllerOptions()} }

func (p Program) newUpCommand() *cobra.Command {
	o := newUpOptions()
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a Kubernetes API and the Drover controller until Ctrl-C",
		Long: `Run etcd, kube-apiserver and the Drover controller in this process.

The data dir keeps everything between starts. Servers go on running when Drover
stops, and the next start takes them over. Each flag can also be given as an
environment variable DROVER_<FLAG>, for example DROVER_VM_DRIVER.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.completeFlags(cmd); err != nil {
				return err
			}
			return p.Up(cmd.Context(), o, cmd.Flags())
		},
	}
	o.addFlags(cmd.Flags())
	app.GroupHelp(cmd)
	return cmd
}

// UpFlags returns the flags of drover up, with their defaults.
func UpFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("up", pflag.ContinueOnError)
	newUpOptions().addFlags(f)
	return f
}

func (o *UpOptions) addFlags(f *pflag.FlagSet) {
	addDataDirFlag(f, &o.DataDir)
	f.StringVar(&o.BindAddress, "bind-address", "127.0.0.1", "IP address that the API is served on")
	f.IntVar(&o.Port, "port", 0, "port that the API is served on, this one or an error; 0 prefers that of the last start and else takes a free one (first start: 6443 if free)")
	f.BoolVar(&o.WithoutController, "without-controller", false, "run only the API, for tests or for another controller")
	f.IntVarP(&o.Verbosity, "verbosity", "v", 0, "verbosity of the log in DIR/logs")
	f.StringVar(&o.storeQuota, "store-quota", "", "size that all objects of the API together may have, such as 512Mi; empty means a 32nd of the host's memory, from 64Mi to 1Gi")
	f.StringVar(&o.LoginDir, "login-dir", "", "folder in which members of group drover log in: its socket and their kubeconfig (default /run/drover for root with data dir /var/lib/drover)")
	f.BoolVar(&o.UnsafeNoFsync, "unsafe-no-fsync", false, "do not wait for the disk: for tests only, a crash of the host loses data")
	f.BoolVar(&o.AllAPIs, "all-apis", false, "serve also the APIs about pods on nodes, though nothing here acts on them: for tests that apply manifests of clusters")
	_ = f.MarkHidden("unsafe-no-fsync")
	_ = f.MarkHidden("all-apis")
	o.Controller.AddControllerFlags(f)
	f.Lookup("qemu-dir").Usage = "qemu: folder of the machines, one directory each, and of images (default DIR/drivers/qemu)"
	f.Lookup("fake-dir").Usage = "fake: folder with one file per server, shared by all controllers that use it (default DIR/drivers/fake)"
}

// completeFlags checks the flags before anything is started.
func (o *UpOptions) completeFlags(cmd *cobra.Command) error {
	if err := app.SetFromEnv(cmd.Flags()); err != nil {
		return err
	}
	o.portGiven = cmd.Flags().Changed("port")
	o.Out = cmd.OutOrStdout()
	if err := app.CheckVerbosity(o.Verbosity); err != nil {
		return fmt.Errorf("--verbosity %d: %w", o.Verbosity, err)
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return err
	}
	o.UseDataDir(datadir.Layout(dir))
	if err := o.completeLogin(cmd.Flags().Changed("login-dir"), dir); err != nil {
		return err
	}
	if _, err := o.StoreQuota(); err != nil {
		return err
	}
	return o.Controller.Validate()
}

// completeLogin lets users log in at the Drover in root's usual data dir. Only root can answer who a user is.
func (o *UpOptions) completeLogin(isChosen bool, dataDir string) error {
	noVariables := func(string) string { return "" }
	switch isRoot := os.Geteuid() == 0; {
	case !isChosen && isRoot && dataDir == datadir.Default(noVariables, 0):
		o.LoginDir = login.Dir(noVariables)
	case o.LoginDir == "":
	case !isRoot:
		return fmt.Errorf("--login-dir is %s: only root lets users of the host log in", o.LoginDir)
	case !filepath.IsAbs(o.LoginDir):
		return fmt.Errorf("--login-dir is %q: it must be an absolute path", o.LoginDir)
	}
	return nil
}

// RequestedPort returns the port that the user has asked for, if any.
func (o *UpOptions) RequestedPort() *int {
	if !o.portGiven {
		return nil
	}
	return &o.Port
}

// UseDataDir makes the drivers keep their data in a data dir, and forbids the controller to use other files in
// the data dir, such as for images.
func (o *UpOptions) UseDataDir(dir datadir.Layout) {
	for name, options := range o.Controller.Drivers {
		if own := options.DataDir(); own != nil && *own == "" {
			*own = filepath.Join(dir.Drivers(), name)
		}
	}
	o.Controller.OwnDirs = []string{string(dir)}
}

// settingsOf returns the flags of the last `drover up` on a host. If it does not run, flags of the environment
// take precedence. settingsOf also sets the environment variables that choose the engine as that `drover up` had
// them, and makes the checks connect to its API without a proxy.
func settingsOf(h *doctor.Host) (doctor.Settings, error) {
	bypassProxy(h.Layout)
	up, f := newUpOptions(), pflag.NewFlagSet("up", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true // another version of the program may have written the flags
	up.addFlags(f)
	if h.State != nil {
		_ = f.Parse(h.State.Args)                       // after an error, defaults remain
		for _, name := range runstate.EngineVariables { // ignore other variables that the file may contain
			if value := h.State.Environment[name]; value != "" && os.Getenv(name) == "" {
				_ = os.Setenv(name, value)
			}
		}
	}
	if h.PID == 0 {
		if err := app.SetFromEnv(f); err != nil {
			return doctor.Settings{}, err
		}
	}
	return up.settingsOf(h.Layout)
}

// bypassProxy makes this process connect to the API of a data dir without a proxy, if the kubeconfig of the API exists.
func bypassProxy(dir datadir.Layout) {
	if config, err := kubeconfig.Read(dir.Kubeconfig()); err == nil {
		_ = login.BypassProxy(config.Host) // after an error, a request fails with a better error
	}
}

func (o *UpOptions) settingsOf(dir datadir.Layout) (s doctor.Settings, err error) {
	s = doctor.Settings{
		BindAddress: o.BindAddress, Port: o.Port, VMDriver: o.Controller.VMDriver, WithoutController: o.WithoutController,
		Addresses: map[string]string{
			"--metrics-bind-address": o.Controller.MetricsAddress, "--health-probe-bind-address": o.Controller.HealthAddress,
			"--pprof-bind-address": o.Controller.PprofAddress,
		},
	}
	if machines, ok := o.Controller.Drivers[qemu.Name].(*qemu.Options); ok {
		s.QEMU = *machines
	}
	s.QEMU.Dir, err = filepath.Abs(cmp.Or(s.QEMU.Dir, filepath.Join(dir.Drivers(), qemu.Name)))
	return s, err
}

// leaseHolder is the name with which every drover up holds the Lease in its API. Neither a pod nor a
// host can have this name.
const leaseHolder = "drover_up"

// relaxedElection returns the election times. On a host, a fast takeover by another process matters
// little. More important is that a slow disk does not end this process, and with it the API.
func relaxedElection() leader.Settings {
	return leader.Settings{Lease: time.Minute, Renew: 40 * time.Second, Retry: 5 * time.Second}
}

// newControllerOptions returns the controller's default options in drover up. The controller
// opens no ports by default. It does not wait for the Lease of another drover up to expire: the
// other process is dead, because this process holds the data dir, which only one process can hold.
func newControllerOptions() *app.Options {
	o := app.NewOptions()
	o.MetricsAddress, o.HealthAddress, o.OwnCRD = "0", "0", true
	o.HolderIdentity, o.LeaseLockNamespace, o.Election = leaseHolder, metav1.NamespaceDefault, relaxedElection()
	o.DeadHolder = func(identity string) bool { return strings.HasPrefix(identity, leaseHolder+"_") }
	return o
}
