// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"flag"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Version is set when the program is built.
var Version = "dev"

// NewCommand returns the command drover-controller.
func NewCommand() *cobra.Command {
	o := NewOptions()
	cmd := &cobra.Command{
		Use:   "drover-controller",
		Short: "Make servers for the VirtualMachines of a cluster",
		Long: "drover-controller makes one server exist for every VirtualMachine and keeps it\n" +
			"as declared. Each flag can also be given as an environment variable\n" +
			"DROVER_<FLAG>, for example DROVER_VM_DRIVER.",
		Args: cobra.NoArgs, Version: Version, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := SetFromEnv(cmd.Flags()); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return err
			}
			cfg, err := restConfig(o.Kubeconfig)
			if err != nil {
				return err
			}
			return Run(cmd.Context(), o, cfg)
		},
	}
	o.AddFlags(cmd.Flags())
	AddLogFlags(cmd.Flags())
	GroupHelp(cmd)
	return cmd
}

// AddLogFlags adds -v and --logtostderr.
func AddLogFlags(fs *pflag.FlagSet) {
	var all flag.FlagSet
	klog.InitFlags(&all)
	all.Lookup("v").Value = verbosity{all.Lookup("v").Value}
	for _, name := range []string{"v", "logtostderr"} {
		fs.AddGoFlag(all.Lookup(name))
	}
}

// maxVerbosity is the highest verbosity at which client-go logs no content of requests and responses, which
// would put Secrets into the log.
const maxVerbosity = 7

// verbosity is the value of -v.
type verbosity struct{ flag.Value }

// Set implements flag.Value.
func (v verbosity) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return errors.New("want a number")
	}
	if err := CheckVerbosity(n); err != nil {
		return err
	}
	return v.Value.Set(text)
}

// CheckVerbosity returns an error if a log of this verbosity would have the content of Secrets.
func CheckVerbosity(n int) error {
	if n < 0 || n > maxVerbosity {
		return fmt.Errorf("want 0 to %d: a higher verbosity logs the content of requests, and Secrets with it", maxVerbosity)
	}
	return nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
		}
		return cfg, nil
	}
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("no --kubeconfig was given and this is not a pod: %w", err)
	}
	return cfg, nil
}
