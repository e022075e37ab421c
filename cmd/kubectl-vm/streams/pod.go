// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
)

// machineContainer is the container of a pod of driver pod that runs the machine.
const machineContainer = "machine"

// ForPod returns a Client for the console and the log of a VM that is a pod: the API server serves
// them, as kubectl attach and kubectl logs have them, with the rights of the user on pods.
func ForPod(config *rest.Config, pod string) (*Client, error) {
	c, err := newClient(streamConfig(config))
	if err != nil {
		return nil, err
	}
	c.pod = pod
	return c, nil
}

// podURL returns where the API server serves the console or the log.
func (c *Client) podURL(namespace string, s streams.Stream, query url.Values) *url.URL {
	subresource := "log"
	if s == streams.Console {
		subresource = "attach"
	}
	u := c.base.JoinPath("api/v1/namespaces", namespace, "pods", c.pod, subresource)
	query = maps.Clone(query)
	query.Del("tty")
	query.Set("container", machineContainer)
	u.RawQuery = query.Encode()
	return u
}

// describePodEnd returns the error that a console of Drover would end with. The kubelet ends the
// stream without a reason once the machine has stopped, and its refusals of a container that does
// not run have several texts.
func (c *Client) describePodEnd(err error) error {
	refused := (*httpstream.UpgradeFailureError)(nil)
	switch {
	case err == nil:
		return fmt.Errorf("%s: the machine has stopped, or its node was lost", streams.ReasonServerStopped)
	case !errors.As(err, &refused), isDenied(refused.Cause):
		return err
	}
	cause := apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: fmt.Sprintf("pod %s has no console now: %s", c.pod, refused.Cause),
	}}
	return &httpstream.UpgradeFailureError{Cause: &cause}
}

// isDenied reports whether the user may not attach.
func isDenied(cause error) bool {
	text := strings.TrimPrefix(cause.Error(), websocket.ErrBadHandshake.Error())
	return apierrors.IsForbidden(cause) || apierrors.IsUnauthorized(cause) || strings.HasPrefix(text, " (403 ") || strings.HasPrefix(text, " (401 ")
}
