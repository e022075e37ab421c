// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-cluster runs a Kubernetes cluster of several nodes on this host.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"cloudnative.tw/drover/test/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "drover-cluster:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use: "drover-cluster", Short: "Run a Kubernetes cluster of several nodes on this machine.",
		SilenceUsage: true, SilenceErrors: true,
	}
	dir := root.PersistentFlags().String("dir", filepath.Join(os.TempDir(), "drover-cluster"), "folder of the cluster")
	root.AddCommand(newUp(dir), newDown(dir), newImage())
	root.AddCommand(internalCommands()...)
	return root
}

func newUp(dir *string) *cobra.Command {
	var opts cluster.Options
	cmd := &cobra.Command{
		Use: "up", Short: "Start a cluster in the background.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c, err := cluster.Open(cmd.Context(), *dir); err == nil {
				if len(c.Nodes()) != opts.Nodes {
					return fmt.Errorf("a cluster of %d nodes runs already: end it with make cluster-down", len(c.Nodes()))
				}
				fmt.Println("A cluster runs already.")
				printUsage(c)
				return nil
			}
			// Removes a cluster that was killed together with the process that cleans up after it.
			if err := cluster.ShutDown(*dir); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			opts.Dir, opts.Detached, opts.Binaries = *dir, true, filepath.Dir(self)
			c, err := cluster.New(cmd.Context(), opts)
			if err != nil {
				return err
			}
			printUsage(c)
			return nil
		},
	}
	cmd.Flags().IntVar(&opts.Nodes, "nodes", 3, "how many nodes")
	cmd.Flags().StringSliceVar(&opts.Images, "image", nil, "archives of images that all nodes import")
	return cmd
}

func printUsage(c *cluster.Cluster) {
	fmt.Printf("export KUBECONFIG=%s\nbin/drover kubectl get nodes\n", c.Kubeconfig)
}

func newDown(dir *string) *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "End the cluster and remove all of it.", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return cluster.ShutDown(*dir) },
	}
}

func newImage() *cobra.Command {
	return &cobra.Command{
		Use: "image TAG ARCHIVE NAME=FILE...", Short: "Write an archive with an image of files, for up --image.", Args: cobra.MinimumNArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			files := map[string]string{}
			for _, arg := range args[2:] {
				name, file, ok := strings.Cut(arg, "=")
				if !ok {
					return fmt.Errorf("%q must be NAME=FILE", arg)
				}
				files[name] = file
			}
			return cluster.WriteImage(args[1], args[0], files, "/none")
		},
	}
}

// internalCommands returns the commands for processes of a cluster.
func internalCommands() []*cobra.Command {
	var name string
	clean := &cobra.Command{
		Use: "clean DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
			return cluster.Clean(name, args[0])
		},
	}
	clean.Flags().StringVar(&name, "name", "", "name of the cluster, whose first process is descriptor 3")
	commands := []*cobra.Command{clean}
	for use, run := range map[string]func(context.Context) error{
		"rig": cluster.RunRig, "node-init": cluster.RunNodeInit, "node": cluster.RunNode,
	} {
		commands = append(commands, &cobra.Command{
			Use: use, Hidden: true, Args: cobra.ArbitraryArgs, // names, for ps
			RunE: func(cmd *cobra.Command, _ []string) error {
				return errors.Join(run(context.WithoutCancel(cmd.Context())), fmt.Errorf("%s has ended", use))
			},
		})
	}
	return commands
}
