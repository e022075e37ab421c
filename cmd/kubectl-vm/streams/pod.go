// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
)

// machineContainer is the container of a pod of driver pod that runs the machine.
const machineContainer = "machine"

// ForPod returns a Client for the console, the log and the ports of a VM that is a pod. The API server
// serves them, as for kubectl attach, logs and port-forward, to users with rights on pods.
func ForPod(config *rest.Config, pod string) (*Client, error) {
	c, err := newClient(streamConfig(config))
	if err != nil {
		return nil, err
	}
	c.pod = pod
	return c, nil
}

// podURL returns the URL of the subresource of the pod that corresponds to a stream.
func (c *Client) podURL(namespace string, s streams.Stream, query url.Values) *url.URL {
	pod := c.base.JoinPath("api/v1/namespaces", namespace, "pods", c.pod)
	if s == streams.PortForward {
		return pod.JoinPath("portforward")
	}
	u := pod.JoinPath("log")
	if s == streams.Console {
		u = pod.JoinPath("attach")
	}
	query = maps.Clone(query)
	query.Del("tty")
	query.Set("container", machineContainer)
	u.RawQuery = query.Encode()
	return u
}

// connectPodPort copies between conn and a TCP port of the pod, by the protocol of kubectl port-forward, until the
// other end has sent everything or the connection is lost. It returns when ctx ends, but may then still use conn
// until conn is closed, since the library neither dials nor opens a stream with a context.
func (c *Client) connectPodPort(ctx context.Context, u *url.URL, port string, conn io.ReadWriter) error {
	dialer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, c.config)
	if err != nil {
		return err
	}
	over := make(chan error, 1)
	go func() {
		tunnel, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		if err != nil {
			over <- c.describePodEnd(err)
			return
		}
		defer context.AfterFunc(ctx, func() { _ = tunnel.Close() })()
		defer func() { _ = tunnel.Close() }()
		over <- copyPort(tunnel, port, conn)
	}()
	select {
	case err = <-over:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func copyPort(tunnel httpstream.Connection, port string, conn io.ReadWriter) error {
	data, failure, err := openPort(tunnel, port)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(data, conn)
		_ = data.Close() // closes only this direction
	}()
	_, err = io.Copy(conn, data)
	_ = data.Reset() // drops unsent data, which would delay the message below
	message, readErr := io.ReadAll(io.LimitReader(failure, maxErrorBody))
	if len(message) > 0 {
		return errors.New(string(message))
	}
	return cmp.Or(err, readErr)
}

// openPort opens a connection to a port through a tunnel. If the connection fails, the stream failure receives
// the reason.
func openPort(tunnel httpstream.Connection, port string) (data, failure httpstream.Stream, err error) {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, port)
	headers.Set(corev1.PortForwardRequestIDHeader, "0") // the tunnel has only this connection
	failure, err = tunnel.CreateStream(headers)
	if err != nil {
		return nil, nil, err
	}
	_ = failure.Close() // this end does not send through it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err = tunnel.CreateStream(headers)
	return data, failure, err
}

// describePodEnd returns the error with which a stream of Drover would have ended. The kubelet ends a stream
// without a reason when the machine has stopped. If the container does not run, the kubelet refuses the stream
// with one of several texts.
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
		Message: fmt.Sprintf("pod %s does not accept connections now: %s", c.pod, refused.Cause),
	}}
	return &httpstream.UpgradeFailureError{Cause: &cause}
}

// isDenied reports whether the API server has refused the stream because of the user's rights.
func isDenied(cause error) bool {
	text := strings.TrimPrefix(cause.Error(), websocket.ErrBadHandshake.Error())
	return apierrors.IsForbidden(cause) || apierrors.IsUnauthorized(cause) || strings.HasPrefix(text, " (403 ") || strings.HasPrefix(text, " (401 ")
}
