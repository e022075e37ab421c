// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
)

// connection is what the verbs share that connect to a VM.
type connection struct {
	*Options
	droverNamespace string
}

// newConnectCommand returns a command of the group that connects.
func (c *connection) newConnectCommand(cmd *cobra.Command) *cobra.Command {
	cmd.GroupID = groupConnect
	cmd.Flags().StringVar(&c.droverNamespace, "drover-namespace", streamsapi.DefaultNamespace, "namespace in which Drover says where it serves consoles, logs, commands and ports")
	return cmd
}

// connect returns a client of streams, and the namespace of VMs.
func (c *connection) connect(ctx context.Context) (client *streams.Client, namespace string, err error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, "", err
	}
	if namespace, err = c.Namespace(); err != nil {
		return nil, "", err
	}
	client, err = streams.Discover(ctx, config, c.droverNamespace)
	return client, namespace, err
}

// streamError returns what the server said about a stream, without the words of the layers
// between, and passes the exit code of a command on.
func streamError(err error) error {
	var exit exec.CodeExitError
	var refused *httpstream.UpgradeFailureError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return &ExitError{Code: exit.Code}
	case errors.As(err, &refused):
		err = refused.Cause
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return errors.New(status.Status().Message)
	}
	if reason, text := streamsapi.SplitReason(err.Error()); reason != "" {
		return errors.New(text)
	}
	return err
}

// oneName returns a check for one name before the dashes, and with a command for one after.
func oneName(command bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		if dash < 0 {
			dash = len(args)
		}
		switch {
		case dash < 1:
			return fmt.Errorf("%s: a name is missing", cmd.UseLine())
		case dash > 1:
			return fmt.Errorf("%s: %q is not expected here; what is meant for the guest goes behind --", cmd.UseLine(), args[1])
		case command && len(args) == dash:
			return fmt.Errorf("%s: the command is missing, which goes behind --", cmd.UseLine())
		}
		return nil
	}
}
